"""A directory of generated data that is made completely or not at all, and only once."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from presave.errors import explain_disk_error
from presave.files import UNFINISHED, set_mode
from presave.folder_lock import NO_LOCKS

MARKER = "dataset.json"


def make_once(directory: str | Path, description: dict[str, Any], fill: Callable[[Path], None]) -> bool:
    """Make the data in `directory`, unless it exists; return True if it was made.

    `fill` writes the data into a temporary folder beside `directory`, which is renamed when complete. Two processes may
    do so at the same time: the first to finish wins. Raises `ValueError` if `directory` holds something else or cannot
    be replaced, and `OSError` if the disk is full or fails.
    """
    target = Path(directory).resolve()  # a link stays a link
    _remove_leftovers(target)
    if _holds(target, description):
        return False
    if target.exists() and (os.path.ismount(target) or target.samefile(".")):
        raise ValueError(
            f"{target} is the working folder, or where something is mounted, so the data cannot take its place; choose "
            "a folder in it"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_folder(target) as folder:
            fill(folder)
            (folder / MARKER).write_text(json.dumps(description, indent=1) + "\n")
            set_mode(folder, 0o755)  # until now, it is private to its owner
            try:
                os.rename(folder, target)
            except OSError:
                if not _holds(target, description):
                    raise
                return False
            return True
    except OSError as error:
        raise explain_disk_error(error, target, f"the data of {description} were being made") from error


@contextmanager
def _temporary_folder(target: Path) -> Iterator[Path]:
    """Make a folder beside `target`, and beside it a file that is locked during the block. Remove both after it.

    A file, because network file systems lock files for all machines, and folders for one.
    """
    with ExitStack() as stack:
        descriptor, lock = _make_lock(target)
        stack.callback(os.close, descriptor)
        stack.callback(lock.unlink, missing_ok=True)
        folder = _folder_of(lock)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)  # nothing if it was renamed
        folder.mkdir(0o700)
        yield folder


def _make_lock(target: Path) -> tuple[int, Path]:
    """Make a new file beside `target`, and lock it, as far as its file system has locks; return its descriptor, too."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=UNFINISHED, dir=target.parent)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process takes it for a leftover, and removes it
            os.close(descriptor)
            continue
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(descriptor)
                Path(name).unlink(missing_ok=True)
                raise
            return descriptor, Path(name)
        if Path(name).exists():
            return descriptor, Path(name)
        os.close(descriptor)


def _folder_of(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.folder")


def _remove_leftovers(target: Path) -> None:
    """Remove temporary folders whose files are not locked, which killed processes have left behind."""
    for lock in target.parent.glob(f".{glob.escape(target.name)}.*{UNFINISHED}"):
        with suppress(OSError):
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(_folder_of(lock), ignore_errors=True)
                lock.unlink()
            finally:
                os.close(descriptor)


def _holds(target: Path, description: dict[str, Any]) -> bool:
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    marker = target / MARKER
    try:
        found = json.loads(marker.read_bytes()) if marker.is_file() else None
    except ValueError as error:
        raise ValueError(f"{marker} is damaged ({error}); delete {target} or choose another directory") from error
    if found != description:
        holds = f"{found}" if found is not None else "files that were not made by this command"
        raise ValueError(f"{target} holds {holds}, not {description}; delete it or choose another directory")
    return True
