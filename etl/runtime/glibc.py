"""glibc's allocator, where that is what `malloc` is."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Parameters of mallopt (glibc's malloc.h, mallopt(3)) and what leaving sets them to.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_MMAP_MAX = -4
DEFAULT_MMAP_MAX = 65536
# glibc raises its mapping threshold to each mapped block that is freed, up to this, and the trim threshold to twice
# as much; the first mallopt ends that for good. The 128 KiB it starts from would map every small array afresh.
LARGEST_MMAP_THRESHOLD = 32 << 20
ADJUSTED_TRIM_THRESHOLD = 2 * LARGEST_MMAP_THRESHOLD
LARGEST_INT = 2**31 - 1
# So many pages are looked for at once.
PAGES_AT_ONCE = 4096


class _Symbol(ctypes.Structure):
    """What dladdr(3) tells: `Dl_info`."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def c_library() -> Any:
    """The C library of this process, with the types of malloc and free."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)
    return libc


def glibc(setting: str) -> Any:
    """The C library. Raises `RuntimeError`, naming `setting`, where it is not glibc, and where `malloc` is that of
    another library, on which mallopt has no effect.
    """
    libc = c_library()
    if not (hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version")):
        raise RuntimeError(f"{setting} needs glibc's mallopt, which this C library has not; use 'default'")
    allocator = _library_of(libc, "malloc")
    if allocator != _library_of(libc, "gnu_get_libc_version"):
        raise RuntimeError(f"{setting} needs glibc's malloc; that of this process is in {allocator}: use 'default'")
    return libc


def set_option(libc: Any, parameter: int, value: int) -> None:
    """mallopt; raises `RuntimeError` where it refuses."""
    if libc.mallopt(parameter, value) != 1:
        raise RuntimeError(f"mallopt refused parameter {parameter} = {value}")


@contextmanager
def block(libc: Any, nbytes: int) -> Iterator[int]:
    """So many bytes of the heap, every page written to; the address. Raises `MemoryError`."""
    address = libc.malloc(nbytes)
    if not address:
        raise MemoryError(f"{nbytes:,} bytes cannot be had")
    try:
        ctypes.memset(address, 1, nbytes)
        yield int(address)
    finally:
        libc.free(address)


def freed_and_resident(libc: Any, nbytes: int) -> int:
    """Return how many bytes of a block of `nbytes` are still in memory after it was written to and freed.

    The pages of the block itself are asked for (mincore(2)): what other threads take and free meanwhile, and memory
    that the process had before, make no difference. Raises `MemoryError`.
    """
    with block(libc, nbytes) as address:
        pass
    first, end = address // mmap.PAGESIZE, -(-(address + nbytes) // mmap.PAGESIZE)
    places = range(first, end, PAGES_AT_ONCE)
    pages = sum(_resident_pages(libc, place, min(PAGES_AT_ONCE, end - place)) for place in places)
    return min(nbytes, pages * mmap.PAGESIZE)


def _resident_pages(libc: Any, first: int, count: int) -> int:
    """How many of `count` pages are in memory; none where some of them have been unmapped."""
    resident = (ctypes.c_ubyte * count)()
    if libc.mincore(ctypes.c_void_p(first * mmap.PAGESIZE), ctypes.c_size_t(count * mmap.PAGESIZE), resident) != 0:
        return 0
    return sum(page & 1 for page in bytes(resident))


def _library_of(libc: Any, function: str) -> Path | None:
    found = _Symbol()
    libc.dladdr.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Symbol))
    address = ctypes.cast(getattr(libc, function), ctypes.c_void_p)
    if not libc.dladdr(address, ctypes.byref(found)) or not found.file:
        return None
    return Path(found.file.decode())
