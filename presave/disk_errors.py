"""What the file system refuses, said with the place and the bytes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from presave.errors import StoreError


@contextmanager
def disk_errors(path: Path, nbytes: int) -> Iterator[None]:
    """Raise `StoreError` for an `OSError` of the block, which writes `nbytes` bytes to `path` or into it."""
    try:
        yield
    except OSError as error:
        said = _describe(error, path, f"{nbytes:,} bytes were on their way to {path}")
        raise StoreError(f"{said}, and write again, which goes on after the last whole shard") from error


def explained(error: OSError, path: Path, done: str) -> OSError:
    """The same error, saying in one line which file under `path`, why, what was `done`, and how many bytes are free."""
    said = _describe(error, path, done)
    return OSError(said) if error.errno is None else OSError(error.errno, said)


def _describe(error: OSError, path: Path, done: str) -> str:
    place = error.filename if isinstance(error.filename, str) else path
    cause = error.strerror or error
    return (
        f"{place}: cannot be written ({cause}): {done}, and {_free(path)} bytes are free there; make room or mend the "
        "disk"
    )


def _free(path: Path) -> str:
    for folder in (path, *path.absolute().parents):
        try:
            return f"{shutil.disk_usage(folder).free:,}"
        except OSError:
            continue
    return "an unknown number of"
