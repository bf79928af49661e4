"""Control of the page cache, which decides whether a read waits for the disk."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

READ_NBYTES = 1 << 20
MAPS = Path("/proc/self/maps")


def drop_from_page_cache(paths: Iterable[Path]) -> int:
    """Drop these files from the page cache, and return how many pages stayed; 0 means that all reads will be cold.

    Dirty pages are written to the disk first, and pages that this process maps are released. Pages that another process
    maps stay, until it calls `release_pages`. The cache of the disk itself, or of the host of a virtual machine, is out
    of reach.

    Raises
    ------
    PermissionError
        If the kernel does not tell this process which pages of a file are in memory.
    """
    release_pages()
    stayed = 0
    for path in paths:
        if not reports_pages(path):
            raise PermissionError(
                f"{path}: the kernel shows which of its pages are in memory only to its owner and to users who may "
                "write to it; compare a copy of your own, or use --cache warm"
            )
        with path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            stayed += _resident_pages(file.fileno())
    return stayed


def release_pages() -> None:
    """Release the pages of all files that this process maps, so that they can be dropped from the page cache.

    The maps stay valid, and read the pages again when they are used. Writable and private maps are left alone, since
    their pages may have been written to.
    """
    for line in MAPS.read_text(errors="surrogateescape").splitlines():
        addresses, permissions, *_ = line.split(maxsplit=2)
        if permissions == "r--s":
            first, end = (int(each, 16) for each in addresses.split("-"))
            _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)


def read_into_page_cache(paths: Iterable[Path]) -> None:
    """Read the files, so that they are in the page cache."""
    buffer = bytearray(READ_NBYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def reports_pages(path: Path) -> bool:
    """Return whether the kernel tells this process which pages of a file are in memory.

    For a file of another user that this process may not write to, mincore(2) says that all pages are in memory, unless
    the process has the rights of the owner: those that O_NOATIME needs, too, and root has them on a read-only mount.
    """
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NOATIME))
    except PermissionError:
        return os.access(path, os.W_OK, effective_ids=True)
    return True


def pages_outside(paths: Iterable[Path]) -> int:
    """Return how many pages of these files are not in the page cache, according to the kernel."""
    outside = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            nbytes = os.fstat(file.fileno()).st_size
            outside += -(-nbytes // mmap.PAGESIZE) - _resident_pages(file.fileno())
    return outside


def absent_pages(array: np.ndarray) -> int:
    """Return how many pages of a contiguous array are not in memory: reading these waits for the disk."""
    first = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    nbytes = array.ctypes.data + array.nbytes - first
    return 0 if array.nbytes == 0 else -(-nbytes // mmap.PAGESIZE) - _count_resident(first, nbytes)


def _resident_pages(descriptor: int) -> int:
    if os.fstat(descriptor).st_size == 0:
        return 0
    # Mapping reads nothing, and ends with the array.
    mapped = np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), np.uint8)
    return _count_resident(mapped.ctypes.data, mapped.nbytes)


def _count_resident(address: int, nbytes: int) -> int:
    """Return how many pages are in memory, according to mincore(2), from `address`, the start of a page."""
    pages = (ctypes.c_ubyte * -(-nbytes // mmap.PAGESIZE))()
    if _libc().mincore(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), pages) != 0:
        raise OSError(ctypes.get_errno(), "mincore failed")
    return sum(page & 1 for page in bytes(pages))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
