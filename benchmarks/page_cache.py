"""Files out of the page cache, so that the next to read them waits for the disk."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path


def drop_from_page_cache(paths: Iterable[Path]) -> int:
    """Ask the kernel to forget the pages of these files; returns how many stayed, 0 where all reads will be cold.

    Pages that somebody maps, or that are not on the disk yet, stay; the latter are written first. A disk's own cache,
    or that of the host of a virtual machine, is out of reach.
    """
    stayed = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            stayed += _resident_pages(descriptor)
        finally:
            os.close(descriptor)
    return stayed


def _resident_pages(descriptor: int) -> int:
    """The pages of a file that mincore(2) says are in memory."""
    nbytes = os.fstat(descriptor).st_size
    if nbytes == 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    pages = (ctypes.c_ubyte * -(-nbytes // mmap.PAGESIZE))()
    # Python's own mmap does not tell its address for a file that may only be read. Mapping reads nothing.
    address = libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap failed")
    try:
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), pages) != 0:
            raise OSError(ctypes.get_errno(), "mincore failed")
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(nbytes))
    return sum(page & 1 for page in bytes(pages))
