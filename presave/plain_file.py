"""Files that others may have made: opened only if they are plain files, so that no pipe or device is waited for."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_plain(path: Path, most_nbytes: int) -> bytes:
    """All bytes of the plain file at `path`.

    Raises `OSError`, and `ValueError` where it is a pipe, a device or the like, or longer than `most_nbytes`.
    """
    # Without waiting: to open a pipe that nobody writes to would take for ever.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(f"{path} is a folder")
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no plain file")
        if status.st_size > most_nbytes:
            raise ValueError(f"it has {status.st_size:,} bytes, and a genuine one no more than {most_nbytes:,}")
        data = file.read(status.st_size + 1)  # a buffer of as many bytes is taken, read or not
    if len(data) > status.st_size:
        raise ValueError("it has grown while it was read")
    return data


def why_not_own(path: Path, links: bool) -> str | None:
    """Why the file at `path` is none of a store's own, in words; None where it is one, or is not there.

    A store's files are plain ones in its folder. With `links` they may also be links to plain files.
    """
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            if not links:
                return "is a link; a store holds its own data. Pass trusted=True if it comes from somebody you trust"
            mode = path.stat().st_mode
    except OSError:  # whoever reads it says so
        return None
    return None if stat.S_ISREG(mode) else "is no plain file"
