"""The server side of fresh processes: it imports everything once, and forks a process for each session.

Importing torch or numba takes longer than most measurements. So they are imported once, in a process where nothing else
is ever done, and every measurement runs in a child forked from that clean state: no batch, thread, model or setting of
another measurement has been in it. Whatever is peculiar to the server, above all where its objects lie in memory, is so
to all of its children: the samples of one server are one independent repetition.

Requests and answers are lines of JSON. The first request prepares the server. Each further one opens a session in a
forked process, which answers, takes the requests that follow, and ends at an empty one. Every answer tells which
instruments took it: a server of another commit must not measure with that commit's clock.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from .instruments import instruments
from .layout import draw_blocks
from .values import JsonValues

Request = dict[str, Any]
Answer = dict[str, Any]
# Takes the requests of a session, one after the other.
Turn = Callable[[Request], Answer]
# Opens a session: its first answer, and what takes its further requests.
OpenSession = Callable[[Request], AbstractContextManager[tuple[Answer, Turn]]]
# Imports and makes ready what all sessions need.
Prepare = Callable[[Request], tuple[Answer, OpenSession]]

REQUESTS = 0
# Exit codes of a session's process.
ENDED, FAILED = 0, 70
# How long the threads of imports may take to end.
ENDING_SECONDS = 1.0
# What wrong input makes loading raise: for these the message says all.
INPUT_ERRORS = (ValueError, OSError, MemoryError, LookupError)


@dataclass(frozen=True)
class Failure(JsonValues):
    """An exception that a server or a session answers with.

    `is_input` says that the user's input is wrong: the message says all. Otherwise `traceback` is needed.
    """

    kind: str
    message: str
    traceback: str
    is_input: bool

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return what `error` says."""
        message = str(error) or type(error).__name__
        if isinstance(error, LookupError):  # the message of a missing key is the key
            message = f"{type(error).__name__}: {message}"
        trace = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, message, trace, isinstance(error, INPUT_ERRORS))


def one_answer(answer: Callable[[Request], Answer]) -> OpenSession:
    """Return sessions of a single request each, which `answer` answers."""

    @contextmanager
    def open_session(request: Request) -> Iterator[tuple[Answer, Turn]]:
        yield answer(request), _refuse

    return open_session


def _refuse(request: Request) -> Answer:
    raise ValueError(f"a session has one request here, and not {request}, too")


def main() -> None:
    """Serve with the function that the last argument names, as `module:function`."""
    serve(sys.argv[-1])


def serve(name: str) -> None:
    """Answer requests with the `Prepare` called `name` until standard input ends.

    Its module is imported above blocks of memory that are drawn anew.
    """
    answers = _claim_output()
    blocks = draw_blocks()
    # Without a buffer: a forked process goes on reading where this one stopped.
    with open(REQUESTS, "rb", buffering=0, closefd=False) as requests:

        def receive() -> Request:
            return dict(json.loads(requests.readline() or "{}"))

        def send(answer: Answer) -> None:
            line = json.dumps({"instruments": instruments().to_json(), **answer})
            os.write(answers, line.encode() + b"\n")

        try:
            module, _, function = name.partition(":")
            prepare: Prepare = getattr(importlib.import_module(module), function)
            ready, open_session = prepare(receive())
            can_fork = _has_one_thread()
            send({"answer": ready, "can_fork": can_fork})
        except BaseException as error:  # noqa: BLE001 - the client raises it
            send({"failure": Failure.of(error).to_json()})
            return
        while request := receive():
            if not can_fork:  # a child would inherit the locks of the other threads
                if _run_session(request, open_session, receive, send) == ENDED:
                    send({"answer": {}})
                return  # the next session gets a new server
            child = os.fork()
            if child == 0:
                # Nothing of the server's is the child's to clean up.
                os._exit(_run_session(request, open_session, receive, send))
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            if code == ENDED:
                send({"answer": {}})  # now, and not before: its end is not to be beside the next session's work
            elif code != FAILED:
                send({"ended": code})
                return
    del blocks


def _run_session(
    request: Request, open_session: OpenSession, receive: Callable[[], Request], send: Callable[[Answer], None]
) -> int:
    """Serve a session, and return `ENDED`, or `FAILED` if an answer said why."""
    try:
        with open_session(request) as (ready, turn):
            send({"answer": ready})
            while request := receive():
                send({"answer": turn(request)})
    except BaseException as error:  # noqa: BLE001 - the client raises it
        send({"failure": Failure.of(error).to_json()})
        return FAILED
    return ENDED


def _claim_output() -> int:
    """Return a descriptor for answers; what anything prints goes to standard error from now on."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def _has_one_thread() -> bool:
    """Return whether this is the only thread of the process, which the system may take a moment to notice."""
    until = time.monotonic() + ENDING_SECONDS
    while len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True
