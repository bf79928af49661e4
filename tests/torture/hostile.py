"""What hostile input is tried with: a process with little memory and little time, that watches what it opens."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.torture.harness import fork, limit_memory

MORE_NBYTES = 512 << 20


@dataclass(frozen=True)
class Ending:
    """What became of a try: the error's kind and message, or None and what was returned; and what Python opened."""

    kind: str | None
    message: str
    opened: tuple[str, ...]


def attempt(function: Callable[[], object]) -> Ending:
    """Call `function` in a forked process that may take `MORE_NBYTES` more than this one has.

    Fails if that process is killed, crashes or hangs.
    """
    ended = fork(partial(_try, function))
    assert ended.status == 0, f"its process ended with status {ended.status}; None: it hangs"
    ending: Ending = ended.returned
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


def bomb(nbytes: int, start: bytes = b"", wbits: int = zlib.MAX_WBITS) -> bytes:
    """`start` and so many zeros, compressed a thousandfold; only their checksum at the end is wrong."""
    packer = zlib.compressobj(9, wbits=wbits)
    packed = packer.compress(start + bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return packed + again * ((nbytes >> 20) - 1) + packer.flush()


def _try(function: Callable[[], object]) -> Ending:
    opened: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes, Path)):
            opened.append(os.path.realpath(os.fsdecode(arguments[0])))

    try:
        limit_memory(MORE_NBYTES)
        sys.addaudithook(watch)
        return Ending(None, repr(function())[:1000], tuple(opened))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is asked for
        message = str(error).encode("utf-8", "backslashreplace").decode()  # which xdist can send
        return Ending(type(error).__name__, message, tuple(opened))
