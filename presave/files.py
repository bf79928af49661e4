"""Single files: atomic writes, reads that do not hang on a pipe or device, and checksums.

Checksums are XXH3 with 128 bits, which runs at memory speed and finds any accidental change.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import xxhash

BLOCK_NBYTES = 1 << 20
# Errors of file systems that lack an operation, such as network and FUSE file systems.
UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
# Ends the name of a file that is being written.
UNFINISHED = ".unfinished"


def write_atomically(path: Path, data: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """Write a file so that it appears with all of its content or not at all.

    Until it appears, an earlier file at `path` keeps its content. If writing fails, no temporary file is left behind.

    Parameters
    ----------
    durable : bool
        If true, the content is flushed to the disk first, so that this holds even if the machine crashes.
    mode : int, optional
        Permission bits; by default only the owner may read and write the file.
    """
    with replacing(path, durable=durable, mode=mode) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a file to write, which takes the place of `path` as a whole when the block ends without an error.

    The arguments are those of `write_atomically`.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if durable:
                file.flush()
                sync(file.fileno())
        if mode is not None:
            set_mode(name, mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_unfinished(path: Path) -> None:
    """Remove what processes that were killed while they replaced `path` have left. No process may be replacing it."""
    for each in path.parent.glob(f".{glob.escape(path.name)}.{'?' * 8}{UNFINISHED}"):  # as mkstemp names them
        with contextlib.suppress(PermissionError):  # of another user
            each.unlink(missing_ok=True)


def set_mode(path: Path | str, mode: int) -> None:
    """Set the permission bits of a new file or folder, unless its file system refuses to.

    FAT, shares of Windows, its drives in WSL and blobfuse2 keep no such bits.
    """
    with contextlib.suppress(OSError):
        os.chmod(path, mode)  # noqa: PTH101 - mkstemp returns a string


def usual_mode(path: Path) -> int:
    """Return the mode of the file at `path`, or the mode that a new file would get."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def flush(path: Path) -> None:
    """Flush a file's bytes, or a folder's entries, to the disk, as far as the file system can."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # A folder whose names may be changed but not listed cannot be opened, and some systems flush no folders.
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EBADF) or not path.is_dir():
            raise


def sync(descriptor: int) -> None:
    """Flush an open file or folder to the disk. Does nothing on a file system that has no such operation."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise


def read_regular_file(path: Path | str, max_nbytes: int) -> bytes:
    """Return the content of a file that may come from an untrusted source.

    It makes four system calls. `np.fromfile` and `open` make more, and took three times as long for photographs.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is not a regular file (but a pipe or a device, for example), is longer than `max_nbytes`, or grows while
        it is read.
    """
    # Non-blocking, because opening a pipe without a writer would otherwise wait forever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(f"{path} is a folder")
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_size > max_nbytes:
            raise ValueError(f"it has {status.st_size:,} bytes; at most {max_nbytes:,} are allowed")
        # One byte more than there are, to see if the file grows. Not `max_nbytes`, because read() allocates all that it
        # is asked for.
        left = status.st_size + 1
        parts = []
        while part := os.read(descriptor, left):
            parts.append(part)
            left -= len(part)
            if left <= 1:  # another read() would only return nothing
                break
    finally:
        os.close(descriptor)
    if not left:
        raise ValueError("it has grown while it was read")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def unsupported_reason(path: Path, allow_links: bool) -> str | None:
    """Return why the file at `path` may not be part of a store, or None if it may, or if it does not exist.

    The files of a store are regular files in its folder. With `allow_links` they may also be links to regular files.
    The reason begins with a verb, to follow the file's name in a message.
    """
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            if not allow_links:
                return "is a link, but a store holds its own data; pass trusted=True if you trust the store's author"
            mode = path.stat().st_mode
    except OSError:  # the caller will get the same error when it reads the file
        return None
    return None if stat.S_ISREG(mode) else "is not a regular file"


def checksum_bytes(data: bytes) -> str:
    """Return the checksum of `data` as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def checksum_file(path: Path) -> str:
    """Return the checksum of a whole file as 32 hexadecimal digits."""
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(BLOCK_NBYTES):
            state.update(block)
    return state.hexdigest()
