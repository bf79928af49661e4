"""What hostile input is tried with: a process with little memory and little time, that watches what it opens."""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MORE_NBYTES = 512 << 20
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Ending:
    """What became of a try: the error's kind and message, or None and what was returned; and what Python opened."""

    kind: str | None
    message: str
    opened: tuple[str, ...]


def attempt(function: Callable[[], object], more_nbytes: int = MORE_NBYTES) -> Ending:
    """Call `function` in a forked process that may take `more_nbytes` more than this one has.

    Fails where that process is killed, crashes or hangs.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(2 * int(PATIENCE_SECONDS))  # also where nobody is left to kill it
        os.close(reading)
        _serve(function, writing, more_nbytes)
    os.close(writing)
    parts = []
    try:
        while select.select([reading], [], [], PATIENCE_SECONDS)[0]:
            part = os.read(reading, 1 << 16)
            if not part:
                break
            parts.append(part)
        else:
            os.kill(child, signal.SIGKILL)
            raise AssertionError(f"it hangs: nothing after {PATIENCE_SECONDS:g} s")
    finally:
        os.close(reading)
        _, status = os.waitpid(child, 0)
    assert status == 0, f"its process ended with status {status}"
    ending: Ending = pickle.loads(b"".join(parts))
    return ending


def refusal(function: Callable[[], object], *parts: str, kinds: tuple[str, ...] = ("ValueError",)) -> str:
    """The message with which `function` refuses, which must be one of `kinds` and hold all `parts`."""
    ending = attempt(function)
    assert ending.kind is not None, f"it was taken: {ending.message}"
    assert ending.kind in kinds, f"{ending.kind}: {ending.message}"
    for part in parts:
        assert part in ending.message, ending.message
    assert len(ending.message) < 4000, ending.message[:4000]
    return ending.message


def limit_memory(more_nbytes: int) -> None:
    """From now on this process may take `more_nbytes` more than it has, and leaves no core where it dies."""
    data_pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = data_pages * resource.getpagesize() + more_nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(function: Callable[[], object], writing: int, more_nbytes: int) -> None:
    opened: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes, Path)):
            opened.append(os.path.realpath(os.fsdecode(arguments[0])))

    try:
        try:
            limit_memory(more_nbytes)
            sys.addaudithook(watch)
            found = Ending(None, repr(function())[:1000], tuple(opened))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is asked for
            message = str(error).encode("utf-8", "backslashreplace").decode()  # which xdist can send
            found = Ending(type(error).__name__, message, tuple(opened))
        with os.fdopen(writing, "wb") as file:
            pickle.dump(found, file)
    finally:
        os._exit(0)
