"""`StoreError`, and file-system errors whose messages name the path and the free space."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Errors of a process, and of a machine, that has too many files open.
SHORTAGES = (errno.EMFILE, errno.ENFILE)
SHORTAGE_ADVICE = (
    "too many files are open, of which this process may have {:,} (ulimit -n); close some or raise the limit"
)


class StoreError(ValueError):
    """A store cannot be read or written as asked.

    The message names the store, the file or the record, and says what to do.
    """


def is_shortage(error: BaseException | None) -> bool:
    """Return True if `error`, or its cause, is that too many files are open, which is not the fault of any file."""
    while error is not None:
        # HDF5, torch and others pass on only the text.
        if getattr(error, "errno", None) in SHORTAGES or any(os.strerror(each) in str(error) for each in SHORTAGES):
            return True
        error = error.__cause__
    return False


def shortage_error(path: Path | str) -> StoreError:
    """Return the error for a file that cannot be opened because too many are open."""
    return StoreError(f"{path}: cannot be opened: {SHORTAGE_ADVICE.format(max_open_files())}")


def max_open_files() -> int:
    """Return how many files this process may have open at a time."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit


@contextmanager
def disk_errors(path: Path, nbytes: int) -> Iterator[None]:
    """Raise `StoreError` for an `OSError` of the block, which writes `nbytes` bytes to the file or folder `path`."""
    try:
        yield
    except OSError as error:
        if is_shortage(error):
            raise shortage_error(error.filename if isinstance(error.filename, str) else path) from error
        explanation = _explain(error, path, f"{nbytes:,} bytes were being written to {path}")
        raise StoreError(f"{explanation}, then write again to continue after the last complete shard") from error


def explain_disk_error(error: OSError, path: Path, activity: str) -> OSError:
    """Return an `OSError` with the same errno and a message that helps the user.

    Parameters
    ----------
    error : OSError
        The error that the file system raised.
    path : Path
        The file or folder that was being written. It is named if `error` names no file of its own.
    activity : str
        What was being done, as a clause, e.g. "the images were being made".

    Returns
    -------
    OSError
        Its message is one line: the file, the cause, the activity and how many bytes are free.
    """
    explanation = _explain(error, path, activity)
    return OSError(explanation) if error.errno is None else OSError(error.errno, explanation)


def _explain(error: OSError, path: Path, activity: str) -> str:
    if is_shortage(error):
        return f"{error.filename or path}: cannot be opened: {SHORTAGE_ADVICE.format(max_open_files())}: {activity}"
    place = error.filename if isinstance(error.filename, str) else path
    cause = error.strerror or error
    return (
        f"{place}: cannot be written ({cause}): {activity}, and {_free_space(path)} bytes are free there; "
        "make room or repair the disk"
    )


def _free_space(path: Path) -> str:
    for folder in (path, *path.absolute().parents):
        try:
            return f"{shutil.disk_usage(folder).free:,}"
        except OSError:
            continue
    return "an unknown number of"
