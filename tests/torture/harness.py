"""Processes for trials that may fail, hang, die or take all memory: forks with limits, and programs that make them.

A fork of a process that has imported and used all it needs takes milliseconds.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing import Self

HERE = Path(__file__).parent
# A fault by itself is one of processor time, so that a busy machine makes none; what waits forever is one, too.
LONGEST_SECONDS = 5
LONGEST_WAIT_SECONDS = 60

T = TypeVar("T")


class Server:
    """A context manager: a program of this folder that answers each line of JSON by another, see `serve`.

    Parameters
    ----------
    within : sequence of str
        Command that starts it.
    variables
        Further variables of its environment.
    """

    def __init__(self, program: str, *arguments: Path, within: Sequence[str] = (), **variables: str) -> None:
        self._process = subprocess.Popen(
            [*within, sys.executable, HERE / program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), *sys.path]))},
        )

    def ask(self, request: Any) -> Any:
        """Return the answer to a request; fail with the exit code if the program has ended instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer.endswith("\n"):
            code = self._process.wait(timeout=60)
            raise AssertionError(f"{self._process.args} ended with exit code {code} when it was asked {request}")
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer the requests of a `Server`."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


@dataclass(frozen=True)
class Ended:
    """How a forked process has ended.

    Attributes
    ----------
    status : int, optional
        0, 1 after an error, or minus the number of the signal that it died of; None if it hung and was killed.
    returned : object
        What its function returned, if the status is 0.
    """

    status: int | None
    returned: Any = None


def fork(run: Callable[[], object], seconds: float = LONGEST_WAIT_SECONDS, kill_after: float | None = None) -> Ended:
    """Call `run` in a forked process. What it returns is pickled.

    Parameters
    ----------
    seconds : float
        After so many without an end, it is killed.
    kill_after : float, optional
        After so many it is killed in any case.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(2 * int(seconds))  # also if nobody is left to kill it
            os.close(reading)
            returned = pickle.dumps(run())
            with os.fdopen(writing, "wb") as file:
                file.write(returned)
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, no further line of the program is run here
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    parts, until = [b""], time.monotonic() + seconds
    with os.fdopen(reading, "rb", 0) as pipe:
        while is_heard := bool(select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]):
            parts.append(pipe.read(1 << 16))
            if not parts[-1]:
                break
        if not is_heard:
            os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ended(status if is_heard else None, pickle.loads(b"".join(parts)) if is_heard and status == 0 else None)


def limit_memory(more_nbytes: int) -> None:
    """Let this process take only `more_nbytes` more than it has, and leave no core when it dies."""
    data_pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = data_pages * resource.getpagesize() + more_nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def die_of_time() -> None:
    """Have this process die when `limit_time` finds that it takes too long, and say before where its threads are."""
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
        faulthandler.register(number, file=2, chain=True)


def limit_time(run: Callable[[], T]) -> T:
    """Return `run()`; a process that takes too long for it dies of a signal, also in C code."""
    signal.setitimer(signal.ITIMER_PROF, LONGEST_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_WAIT_SECONDS)
    try:
        return run()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
