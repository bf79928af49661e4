"""A fault that only somebody finds who is led to it: one byte after the other has to be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.torture.mutated_input import Input

MAGIC = b"ETL!"


def _read(content: bytes) -> None:
    # One branch each, as code that reads a header field by field has them.
    if content[:1] != MAGIC[:1]:
        raise ValueError("another file")
    if content[1:2] != MAGIC[1:2]:
        raise ValueError("another kind")
    if content[2:3] != MAGIC[2:3]:
        raise ValueError("another version")
    if content[3:4] != MAGIC[3:4]:
        raise ValueError("no end of its header")
    raise KeyError("planted")


def _planted(_: Path) -> Input:
    return Input([b"none"], _read)


PLANTED: dict[str, Callable[[Path], Input]] = {"planted": _planted}
