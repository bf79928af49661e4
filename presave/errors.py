"""`StoreError`, and file-system errors whose messages name the path and the free space."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from concurrent import futures
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
    # HDF5, torch and others pass on only the text.
    return any(
        getattr(each, "errno", None) in SHORTAGES or any(os.strerror(number) in str(each) for number in SHORTAGES)
        for each, is_cause in _chain(error)
        if is_cause
    )


def shortage_error(path: Path | str) -> StoreError:
    """Return the error for a file that cannot be opened because too many are open."""
    return StoreError(f"{path}: cannot be opened: {SHORTAGE_ADVICE.format(max_open_files())}")


def max_open_files() -> int:
    """Return how many files this process may have open at a time."""
    try:
        import resource
    except ImportError:  # on Windows
        return 1 << 13
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit


# `OSError`s that say what is wrong with one file: its name, its kind, or its content. All others are of the machine.
_FILE_ERRNOS = frozenset(
    getattr(errno, name)
    for name in ("EISDIR", "ENOTDIR", "ELOOP", "ENAMETOOLONG", "ENXIO", "EINVAL", "EFBIG", "EOVERFLOW", "EILSEQ")
)
_NO_RESOURCES = (MemoryError, TimeoutError, ConnectionError, futures.BrokenExecutor, futures.TimeoutError)
# torch, OpenCV, threading and users' code say so in words alone.
_NO_RESOURCES_TEXT = re.compile(
    r"(out of|insufficient|not enough|allocate) memory|start new thread|too many open files|no space left|cuda error",
    re.IGNORECASE,
)


def is_fault_of_record(error: BaseException) -> bool:
    """Return True if `error` is a property of the record that was being loaded, so that it may be skipped.

    It is not if the machine or the program is at fault: too many open files, too little memory or disk space, a failing
    disk (EIO), a connection, a timeout, a missing package, a name that is not defined. A file that is missing or cannot
    be read is the record's fault only if its folder is there and not empty: otherwise a mount or the whole data set is
    gone.

    The causes of `error` count, too, since libraries and users' code wrap errors in their own.
    """
    return not any(
        _is_lack_of_resources(each) or (is_cause and not _is_of_one_record(each)) for each, is_cause in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[tuple[BaseException, bool]]:
    """Yield `error`, its cause, and so on; each once, because `raise error from error` makes it its own cause.

    Each comes with True, or False if it was only handled, such as the ImportError by which a decoder was chosen.
    """
    seen: set[int] = set()
    is_cause = True
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error, is_cause
        is_cause = is_cause and error.__cause__ is not None
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_lack_of_resources(error: BaseException) -> bool:
    if isinstance(error, _NO_RESOURCES) or _NO_RESOURCES_TEXT.search(str(error)):
        return True
    if not isinstance(error, OSError) or error.errno is None:
        return False  # decoders raise errors without a number for damaged content
    return not isinstance(error, (FileNotFoundError, PermissionError)) and error.errno not in _FILE_ERRNOS


def _is_of_one_record(error: BaseException) -> bool:
    if not isinstance(error, Exception) or isinstance(error, (ImportError, NameError)):
        return False
    if isinstance(error, (FileNotFoundError, PermissionError)) and isinstance(error.filename, (str, bytes)):
        try:
            with os.scandir(Path(os.fsdecode(error.filename)).parent) as entries:
                return next(entries, None) is not None
        except OSError:
            return False
    return True


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
    """Return an `OSError` with the errno of `error` and one line for the user: file, cause, activity, free space.

    `path`, which was being written, is named if `error` names no file. `activity` is a clause, such as "the images were
    being made".
    """
    explanation = _explain(error, path, activity)
    return OSError(explanation) if error.errno is None else OSError(error.errno, explanation)


def _explain(error: OSError, path: Path, activity: str) -> str:
    if is_shortage(error):
        return f"{shortage_error(error.filename or path)}: {activity}"
    place = error.filename if isinstance(error.filename, str) else path
    cause = error.strerror or error
    return (
        f"{place}: cannot be written ({cause}): {activity}, and {_free_space(path)} bytes are free there; "
        "make room or repair the disk"
    )


def _free_space(path: Path) -> str:
    unknown = "an unknown number of"
    for folder in (path, *path.absolute().parents):
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            continue
        return f"{usage.free:,}" if usage.total else unknown
    return unknown
