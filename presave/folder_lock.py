"""A lock on a folder, which only one process holds at a time."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path

from presave.errors import StoreError
from presave.files import UNSUPPORTED, read_regular_file

OWNER_NAME, LOCK_NAME = "owner", "lock"
MAX_OWNER_NBYTES = 1 << 12
# Errors of file systems without locks.
NO_LOCKS = (*UNSUPPORTED, errno.ENOLCK, errno.EBADF)
# A process that asks, in `is_locked`, holds the lock for less.
ASKING_SECONDS = 0.01
# Something else that lies where the file should be is not followed, and not waited for.
CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class FolderLock:
    """A lock on a folder: the kernel's on a file in it, or a file that names this process if there are no locks.

    Network file systems lock files for all machines, but folders for one: their locks of folders are unknown to others.

    The kernel's ends at `release`, or with this process and all its forks. If a process on this machine was killed, its
    file is replaced; if it ran elsewhere, nothing here can know, and its file has to be deleted.

    Raises
    ------
    BlockingIOError
        If another process holds the lock, or has removed the folder.
    StoreError
        If a process of another machine holds it, or was killed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = os.getpid()
        self._name: str | None = None
        try:
            self._descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | CAREFULLY, 0o666)
        except FileNotFoundError as error:
            raise BlockingIOError from error
        try:
            self._take()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _take(self) -> None:
        try:
            try:
                _lock(self._descriptor)
            except BlockingIOError:
                time.sleep(ASKING_SECONDS)
                _lock(self._descriptor)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            # The token tells the locks of one process apart.
            name = f"{_describe(os.getpid())} {secrets.token_hex(4)}"
            _claim(self._folder / OWNER_NAME, name)
            self._name = name
            return
        if not self._is_in_folder():  # the process that held it has removed it, and the next one makes another
            raise BlockingIOError

    def _is_in_folder(self) -> bool:
        """Return True if the file that is open is still the one in the folder."""
        with suppress(OSError):
            return os.path.samestat((self._folder / LOCK_NAME).stat(), os.fstat(self._descriptor))
        return False

    def release(self, removes_folder: bool = False) -> None:
        """Release the lock, for forks of this process, too; with `removes_folder`, remove a folder with nothing else.

        In a fork this does nothing.
        """
        if os.getpid() != self._process:
            return
        with suppress(OSError):
            # Before another process can lock it: that one's file is a new one.
            if removes_folder and self._is_in_folder():
                (self._folder / LOCK_NAME).unlink()
        with suppress(OSError):
            owner = self._folder / OWNER_NAME
            if self._name is None:
                _unlock(self._descriptor)
            elif owner.read_text() == self._name:
                owner.unlink()
        os.close(self._descriptor)
        with suppress(OSError):
            if removes_folder:  # once the file is closed: until then, a network file system keeps it under another name
                self._folder.rmdir()


def is_locked(folder: Path) -> bool:
    """Return True if a process is known to hold the lock of `folder`. The folder stays as it is."""
    with suppress(OSError):
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | CAREFULLY)
        try:
            _lock(descriptor, is_shared=True)  # so that several processes that ask do not take each other for the owner
            _unlock(descriptor)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    try:
        return bool(_is_running(read_regular_file(folder / OWNER_NAME, MAX_OWNER_NBYTES).decode()))
    except (OSError, ValueError):
        return False


def _lock(descriptor: int, is_shared: bool = False) -> None:
    try:
        import fcntl
    except ImportError as error:  # on Windows
        raise OSError(errno.ENOLCK, "this system has no such locks") from error
    fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _unlock(descriptor: int) -> None:
    # Closing the descriptor is not enough: a process that was forked meanwhile has it open, too.
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_UN)


def _claim(file: Path, name: str) -> None:
    while True:
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            _remove_if_ended(file)
            continue
        with os.fdopen(descriptor, "w") as opened:
            opened.write(name)
        return


def _remove_if_ended(file: Path) -> None:
    """Remove the file of a process of this machine that has ended; raise if it runs, or is of another machine."""
    try:
        owner = file.read_text()
    except FileNotFoundError:
        return
    is_running = _is_running(owner)
    if is_running is None:
        raise StoreError(
            f"{owner or 'a process'} began to write in {file.parent}, on a file system without locks; if it has ended, "
            f"delete {file}, then write again"
        )
    if is_running:
        raise BlockingIOError
    # Renamed first, so that of several processes that find it only one removes it, and not the file of another.
    taken = file.with_name(f".{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):
        os.rename(file, taken)
        if taken.read_text() != owner:
            os.rename(taken, file)
            raise BlockingIOError
        taken.unlink()


def _is_running(owner: str) -> bool | None:
    """Return True if the process that a file names is running, and None if it is of another machine."""
    machine, _, process = owner.rpartition(" process ")
    number = process.partition(" ")[0]
    if not number.isdecimal() or machine != _machine():
        return None
    running = _describe(int(number))
    return running is not None and owner.startswith(f"{running} ")


def _describe(process: int) -> str | None:
    """Return what identifies a process of this machine, or None if it has ended."""
    try:
        status = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if status[0] == "Z" else f"{_machine()} process {process} started {status[19]}"


def _machine() -> str:
    """Return what identifies this machine since it was started, and this container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
