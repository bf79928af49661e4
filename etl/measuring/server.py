"""The server side of fresh processes: it imports everything once, and forks a process for each session.

Importing torch or numba takes longer than most measurements. So a server imports them once and does nothing else, and
every measurement runs in a child forked from that clean state, free of batches, threads, models and settings of other
measurements. The peculiarities of a server, above all the addresses of its objects, are shared by all of its children:
the samples of one server count as one independent repetition.

Requests and answers are lines of JSON. The first request prepares the server; if it has a false "may_fork", each
session gets a server of its own, which ends like any other process. The next one opens a session in a forked
process, which answers it and the requests that follow, until an empty request ends the session. Then another session
can be opened. Every answer names the instruments that took it: a server of another commit must not measure with that
commit's clock.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import importlib
import json
import mmap
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from .instruments import current_instruments
from .layout import draw_blocks
from .values import JsonValues

Request = dict[str, Any]
Answer = dict[str, Any]
# Answers the next request of a session.
Turn = Callable[[Request], Answer]
# Opens a session: returns its first answer, and a function for its further requests.
OpenSession = Callable[[Request], AbstractContextManager[tuple[Answer, Turn]]]
# Imports and prepares everything that all sessions need.
Prepare = Callable[[Request], tuple[Answer, OpenSession]]

# Outcomes of a session. An exit code would not tell, because the code that is measured may end the process itself.
INCOMPLETE, ENDED, FAILED = range(3)
# Lets a process write its stack to standard error.
STACK_SIGNAL = signal.SIGUSR1
# For prctl(2): the signal that this process gets when its parent ends.
PR_SET_PDEATHSIG = 1
# How long the threads of imports may take to end.
ENDING_SECONDS = 1.0
# Loading raises these for wrong input; their messages need no traceback.
INPUT_ERRORS = (ValueError, OSError, MemoryError, LookupError)


@dataclass(frozen=True)
class Failure(JsonValues):
    """An exception, as a server or a session sends it.

    Attributes
    ----------
    kind, message, traceback : str
        The name of its class, its text, and the formatted traceback.
    is_input : bool
        True if the user's input is wrong, so that the message suffices.
    moment : float
        When it was raised, in seconds of the clock that all processes of a machine share.
    """

    kind: str
    message: str
    traceback: str
    is_input: bool
    moment: float

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return `error` in the form that can be sent."""
        message = str(error) or type(error).__name__
        if isinstance(error, LookupError):  # the message of a missing key is the key
            message = f"{type(error).__name__}: {message}"
        trace = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, message, trace, isinstance(error, INPUT_ERRORS), time.monotonic())


def every_answer(answer: Turn) -> OpenSession:
    """Return a function that opens sessions whose requests, the first one included, are all answered by `answer`."""

    @contextmanager
    def open_session(request: Request) -> Iterator[tuple[Answer, Turn]]:
        yield answer(request), answer

    return open_session


def serve() -> None:
    """Answer requests with a `Prepare` until standard input ends. The last argument names it: `module:function`.

    Random blocks of memory are allocated before that module is imported.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a program that ignores it would leave that to its children
    faulthandler.enable(2)
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=False)
    pipe, answers = _claim_pipes()
    end_with_parent()
    ends = select.poll()
    ends.register(pipe, select.POLLIN)
    if any(event & select.POLLHUP for _, event in ends.poll(0)):  # the client had ended before
        return
    outcome = mmap.mmap(-1, 1)  # shared with the process of a session
    blocks = draw_blocks()
    # Without a buffer, a forked process continues to read where this one stopped.
    with os.fdopen(pipe, "rb", buffering=0) as requests:

        def receive() -> Request:
            return dict(json.loads(requests.readline() or "{}"))

        def send(answer: Answer) -> None:
            line = json.dumps({"instruments": current_instruments().to_json(), **answer})
            rest = memoryview(line.encode() + b"\n")
            while rest:  # a signal may interrupt writing
                rest = rest[os.write(answers, rest) :]

        try:
            module, _, function = sys.argv[-1].partition(":")
            prepare: Prepare = getattr(importlib.import_module(module), function)
            first = receive()
            ready, open_session = prepare(first)
            can_fork = bool(first.get("may_fork", True)) and _has_one_thread()
            send({"answer": ready, "can_fork": can_fork})
        except BaseException as error:  # noqa: BLE001 - the client raises it
            send({"failure": Failure.of(error).to_json()})
            return
        while request := receive():
            if not can_fork:  # a child would inherit the locks of the other threads
                if _run_session(request, open_session, receive, send) == ENDED:
                    send({"answer": {}})
                return  # the next session gets a new server
            outcome[0] = INCOMPLETE
            server = os.getpid()
            child = os.fork()
            if child == 0:
                end_with_parent()
                if os.getppid() != server:  # it had ended before
                    os._exit(1)
                # The child must not clean up what belongs to the server, only what it made itself.
                atexit._clear()
                seen = _run_session(request, open_session, receive, send)
                if seen == FAILED:  # which the client knows: what exit handlers do does not matter
                    outcome[0] = FAILED
                atexit._run_exitfuncs()
                outcome[0] = seen
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if outcome[0] == ENDED:
                send({"answer": {}})  # only now: the end of one session must not overlap with the next
            elif outcome[0] == INCOMPLETE:
                send({"ended": os.waitstatus_to_exitcode(status)})
                return
    del blocks


def _run_session(
    request: Request, open_session: OpenSession, receive: Callable[[], Request], send: Callable[[Answer], None]
) -> int:
    """Serve a session, and return `ENDED`, or `FAILED` if it has sent a failure."""
    try:
        with open_session(request) as (ready, turn):
            send({"answer": ready})
            while request := receive():
                send({"answer": turn(request)})
    except BaseException as error:  # noqa: BLE001 - the client raises it
        send({"failure": Failure.of(error).to_json()})
        return FAILED
    return ENDED


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends: code that hangs would never see the end of the pipe."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _claim_pipes() -> tuple[int, int]:
    """Return descriptors for requests and answers, out of reach of the code that is measured.

    What that prints goes to standard error. Its standard input is empty.
    """
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def _has_one_thread() -> bool:
    """Return whether the process has one thread, after waiting a moment for others to end."""
    until = time.monotonic() + ENDING_SECONDS
    while len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True
