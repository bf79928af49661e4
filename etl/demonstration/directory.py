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
from presave.files import UNFINISHED
from presave.folder_lock import NO_LOCKS

MARKER = "dataset.json"


def make_once(directory: str | Path, description: dict[str, Any], fill: Callable[[Path], None]) -> bool:
    """Make the data in `directory`, unless it exists; return True if it was made.

    `fill` writes the data into a temporary folder beside `directory`, which is renamed when complete. Two processes may
    do so at the same time: the first to finish wins. Raises `ValueError` if `directory` holds something else, and
    `OSError` if the disk is full or fails.
    """
    target = Path(directory)
    if _holds(target, description):
        return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_folder(target) as folder:
            fill(folder)
            (folder / MARKER).write_text(json.dumps(description, indent=1) + "\n")
            folder.chmod(0o755)  # mkdtemp makes it private to its owner
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
    """Make a folder beside `target` that is locked during the block, and removed after it unless it was renamed."""
    with ExitStack() as stack:
        # The parent is locked meanwhile: until the new folder is locked, another process would remove it as a leftover.
        with _locked(target.parent, fcntl.LOCK_EX):
            _remove_leftovers(target)
            folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=UNFINISHED, dir=target.parent))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.enter_context(_locked(folder, fcntl.LOCK_EX))
        yield folder


def _remove_leftovers(target: Path) -> None:
    """Remove unlocked temporary folders, which killed processes have left behind."""
    for folder in target.parent.glob(f".{glob.escape(target.name)}.*{UNFINISHED}"):
        with suppress(OSError), _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path, operation: int) -> Iterator[None]:
    descriptor, process = os.open(folder, os.O_RDONLY), os.getpid()
    try:
        try:
            fcntl.flock(descriptor, operation)
        except OSError as error:  # without locks, only leftovers cannot be told from what is being made
            if error.errno not in NO_LOCKS or operation & fcntl.LOCK_NB:
                raise
        yield
    finally:
        if os.getpid() == process:
            with suppress(OSError):
                # Closing is not enough: a process that was forked meanwhile has the folder open, too.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
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
