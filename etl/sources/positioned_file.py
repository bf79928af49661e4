"""A file that is read at given offsets."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any


class PositionedFile:
    """Reads byte ranges of the file at `path`, which is opened on the first read.

    The file is closed by `close()`, or when nothing refers to it any more. It is pickled as its path. Threads and
    forked processes may share it, because no read moves a shared file position.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: _Descriptor | None = None

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` bytes from byte `offset` on; raise `ValueError` if the file ends earlier."""
        # This reference keeps the file open until the end of this read, even if another thread calls `close`.
        opened = self._open
        if opened is None:
            try:
                opened = self._open = _Descriptor(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
            except FileNotFoundError as error:  # of all records in the file, so none of them is to be skipped for it
                raise OSError(
                    errno.ESTALE, "the file is gone since it was opened; open it again", str(self.path)
                ) from error
        found = os.pread(opened.number, nbytes, offset)
        while len(found) < nbytes:  # Linux reads at most 2 GiB a call
            more = os.pread(opened.number, nbytes - len(found), offset + len(found))
            if not more:
                raise ValueError(f"{self.path} is shorter than when it was opened: it has changed, open it again")
            found += more
        return found

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        self._open = None

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_open": None}


class _Descriptor:
    """A file descriptor that is closed when the last reader has dropped it."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)
