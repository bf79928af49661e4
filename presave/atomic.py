"""Files that are there with all of their content or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """Write `path` so that it is there with all of `data` or not at all; if `durable`, even should the machine stop.

    What stood there before stays until then. The file may be read by its owner, unless `mode` says otherwise. Raises
    `OSError`, and then leaves nothing behind.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if mode is not None:
            os.chmod(name, mode)  # noqa: PTH101 - of a name, as mkstemp gives it
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def flush(path: Path) -> None:
    """Have the system write a folder's entries, or a file's bytes, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
