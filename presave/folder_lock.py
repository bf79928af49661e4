"""A lock on a folder, which only one process holds at a time."""

from __future__ import annotations

import errno
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

from presave.errors import StoreError
from presave.files import UNSUPPORTED, read_regular_file

OWNER_NAME = "owner"
MAX_OWNER_NBYTES = 1 << 12
# Errors of file systems without locks. NFS has locks, but exclusive ones only for what is open for writing.
NO_LOCKS = (*UNSUPPORTED, errno.ENOLCK, errno.EBADF)


class FolderLock:
    """A lock on an open folder: the kernel's, or a file that names this process if the file system has no locks.

    The kernel's ends at `release`, or with this process and all its forks. If a process on this machine was killed, its
    file is replaced; if it ran elsewhere, nothing here can know, and its file has to be deleted.

    Raises
    ------
    BlockingIOError
        If another process holds the lock.
    StoreError
        If a process of another machine holds it, or was killed.
    """

    def __init__(self, folder: Path, descriptor: int) -> None:
        self._file = folder / OWNER_NAME
        self._descriptor = descriptor
        self._process = os.getpid()
        self._name: str | None = None
        try:
            _lock(descriptor)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            # The token tells the locks of one process apart.
            name = f"{_describe(os.getpid())} {secrets.token_hex(4)}"
            _claim(self._file, name)
            self._name = name

    def release(self) -> None:
        """Release the lock, for forks of this process, too. In a fork this does nothing."""
        if os.getpid() != self._process:
            return
        with suppress(OSError):
            if self._name is None:
                _unlock(self._descriptor)
            elif self._file.read_text() == self._name:
                self._file.unlink()


def is_locked(folder: Path) -> bool:
    """Return True if a process is known to hold the lock of `folder`. The folder stays as it is."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
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
