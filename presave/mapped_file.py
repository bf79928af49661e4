"""Files that are mapped into memory without a file descriptor, since a store has many and a process few descriptors."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAP_FAILED = ctypes.c_void_p(-1).value


def map_file(path: Path) -> NDArray[np.uint8]:
    """Return the content of a file as a read-only uint8 array, mapped into memory; raise `OSError` if it cannot be.

    Python's `mmap` keeps a descriptor for as long as the map lives.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        nbytes = os.fstat(descriptor).st_size
        if not nbytes:  # there are no empty maps
            return np.empty(0, np.uint8)
        address = _libc().mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == MAP_FAILED and ctypes.get_errno() == errno.ENODEV:  # FUSE with direct I/O has private maps alone
            address = _libc().mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
        if address == MAP_FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(path))
    finally:
        os.close(descriptor)
    return np.asarray(_Map(address, nbytes, _libc().munmap))


class _Map:
    """Mapped memory, which is released when no array views it any more."""

    def __init__(self, address: int, nbytes: int, release: Callable[[int, int], int]) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, True), "shape": (nbytes,), "typestr": "|u1"}
        self._release = functools.partial(release, address, nbytes)

    def __del__(self) -> None:
        self._release()


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc
