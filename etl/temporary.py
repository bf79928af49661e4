"""Temporary folders that are removed however the process ends that uses them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

# Signals that ask a process to end: by default it does so at once, and leaves its files and processes behind.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
# Folders with such names are locked as long as they are in use, by a file in them: network file systems lock files for
# all machines, and folders for one. Earlier versions, which may run beside this one, locked folders named `.lock`.
PREFIX, LOCKED, LOCK_FILE = "etl-", ".locked", ".lock"


class Terminated(BaseException):
    """Raised when a signal has asked this process to end. `except Exception` does not catch it: it is not an error."""

    def __init__(self, number: int) -> None:
        super().__init__(f"terminated by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Raise `Terminated` in the block when a signal asks this process to end, unless the program handles that signal.

    Another one ends the process at once if code in the block has caught the first one and goes on.

    Only the main thread can handle signals; in others this does nothing.
    """
    taken: list[signal.Signals] = []
    received: list[int] = []

    def leave(number: int, _: object) -> None:
        handled = sys.exception()
        while handled is not None and not isinstance(handled, Terminated):
            handled = handled.__context__
        if handled is not None:  # another one must not interrupt the cleaning
            return
        if received:  # a bare `except`, such as that of a data set, would catch this one, too
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.append(number)
        raise Terminated(number)

    if threading.current_thread() is threading.main_thread():
        taken += [each for each in ENDING if signal.getsignal(each) is signal.SIG_DFL]
    try:
        for each in taken:
            signal.signal(each, leave)
        yield
    except Exception:  # cleaning up may have failed: the terminal is gone after SIGHUP
        if not received:
            raise
    finally:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)
    if received:
        raise Terminated(received[0])


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Yield a new temporary folder, which is removed at the end, also if a signal asks this process to end.

    Folders that killed processes of this user have left behind are removed first.
    """
    try:
        with ending_in_order(), _locked_folder(f"{PREFIX}{name}-") as folder:
            yield folder
    except Terminated as end:
        if signal.getsignal(end.number) is signal.SIG_DFL:  # no other block has to clean up
            signal.raise_signal(end.number)
        raise


@contextmanager
def _locked_folder(prefix: str) -> Iterator[Path]:
    remove_leftovers(Path(tempfile.gettempdir()).glob(f"{PREFIX}*{LOCKED}"))
    temporary = tempfile.TemporaryDirectory(prefix=prefix)
    lock = ExitStack()
    try:
        temporary.name, lock = lock_folder(temporary.name)
        yield Path(temporary.name)
    finally:
        try:
            lock.close()  # first: a network file system keeps an open file, and with it the folder
            temporary.cleanup()
        except BaseException:  # a signal, or a process that was still writing into it
            temporary.cleanup()
            raise


def lock_folder(folder: str) -> tuple[str, ExitStack]:
    """Rename and lock a new folder: if this process is killed, a later one removes it with `remove_leftovers`.

    Returns its name, and what unlocks it when it is closed. Without locks in its file system the folder keeps its name,
    and is never taken for a leftover. The lock is in a file of the folder, `LOCK_FILE`.
    """
    lock = ExitStack()
    with suppress(OSError):
        lock = _lock(folder, os.O_CREAT)
        # Renamed only now: until it is locked, another process would remove it as a leftover.
        os.rename(folder, folder + LOCKED)
        folder += LOCKED
    return folder, lock


def _lock(folder: str | Path, creating: int = 0) -> ExitStack:
    """Lock a folder of this user, and return what unlocks it; raise `OSError` if that is impossible.

    The lock ends with the processes that hold it, whatever their ids, containers and machines. Its file is made if
    `creating` is `os.O_CREAT`.
    """
    try:
        import fcntl
    except ImportError as error:  # on Windows
        raise OSError("this system has no such locks") from error
    with ExitStack() as stack:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        stack.callback(os.close, opened)
        if os.fstat(opened).st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to another user")
        file = os.open(LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | creating, 0o600, dir_fd=opened)
        stack.callback(os.close, file)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The folder, too: systemd-tmpfiles, which removes files that are some days old, leaves those of a locked one.
        with suppress(OSError):  # not all file systems lock folders
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock: ExitStack = stack.pop_all()
    return lock


def remove_leftovers(folders: Iterable[Path]) -> None:
    """Remove those of `folders`, which `lock_folder` has renamed, that are not locked: their processes were killed."""
    for folder in folders:
        with suppress(OSError):
            with suppress(FileNotFoundError):  # a process was killed while it removed the folder
                _lock(folder).close()
            shutil.rmtree(folder, ignore_errors=True)
