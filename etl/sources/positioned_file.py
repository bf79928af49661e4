"""A file of which pieces are read, wherever they lie."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class PositionedFile:
    """Reads pieces of the file at `path`, opened when first read from.

    It is closed by `close()` or when nothing refers to it any more, and pickled as its path. Threads and forked
    processes may share it: no read moves a position that another would see.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: _Descriptor | None = None

    def read(self, offset: int, nbytes: int) -> bytes:
        """`nbytes` bytes from byte `offset` on; raises `ValueError` where the file ends before."""
        # Kept here, so that a close in another thread takes effect after this read.
        opened = self._open
        if opened is None:
            opened = self._open = _Descriptor(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
        found = os.pread(opened.number, nbytes, offset)
        while len(found) < nbytes:  # Linux gives at most 2 GiB a call
            more = os.pread(opened.number, nbytes - len(found), offset + len(found))
            if not more:
                raise ValueError(f"{self.path} is shorter than when it was opened: it has changed, open it again")
            found += more
        return found

    def close(self) -> None:
        """Give the file back; the next read opens it again."""
        self._open = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_open": None}


class _Descriptor:
    """An open file's number, closed when the last reader has let go of it."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)
