"""glibc's allocator: a check that this process uses it, its options, and the freed memory that it keeps."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any

# Parameters of mallopt (glibc's malloc.h, mallopt(3)), and the values that a policy sets when it ends.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_MMAP_MAX = -4
DEFAULT_MMAP_MAX = 65536
# glibc raises its mapping threshold to the size of each mapped block that is freed, up to this maximum, and the trim
# threshold to twice that. The first mallopt ends this adjusting for good, and the initial 128 KiB would map every small
# array afresh.
MAX_MMAP_THRESHOLD = 32 << 20
ADJUSTED_TRIM_THRESHOLD = 2 * MAX_MMAP_THRESHOLD
MAX_INT = 2**31 - 1
# Pages in one call of mincore.
_PAGES_PER_CALL = 4096


class _Symbol(ctypes.Structure):
    """`Dl_info`, the result of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def c_library() -> Any:
    """Load the C library of this process, with the types of malloc and free declared."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)
    return libc


def require_glibc(setting: str) -> Any:
    """Load the C library; raise `RuntimeError` that names `setting` if glibc does not provide `malloc`.

    On the `malloc` of another library mallopt has no effect.
    """
    libc = c_library()
    if not (hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version")):
        raise RuntimeError(f"{setting} needs glibc's mallopt, which this C library has not; use 'default'")
    allocator = _library_of(libc, "malloc")
    if allocator != _library_of(libc, "gnu_get_libc_version"):
        raise RuntimeError(f"{setting} needs glibc's malloc; that of this process is in {allocator}: use 'default'")
    return libc


def set_option(libc: Any, parameter: int, value: int) -> None:
    """Call mallopt; raise `RuntimeError` if it refuses the value."""
    if libc.mallopt(parameter, value) != 1:
        raise RuntimeError(f"mallopt refused parameter {parameter} = {value}")


def freed_and_resident(libc: Any, nbytes: int) -> int:
    """Return how many bytes of a block of `nbytes` are still in memory after it was written to and freed.

    mincore(2) is asked for the pages of the block itself, so memory that other threads allocate and free meanwhile, or
    that the process had before, makes no difference. Raises `MemoryError`.
    """
    address = libc.malloc(nbytes)
    if not address:
        raise MemoryError(f"{nbytes:,} bytes cannot be had")
    ctypes.memset(address, 1, nbytes)
    libc.free(address)
    first, end = address // mmap.PAGESIZE, -(-(address + nbytes) // mmap.PAGESIZE)
    starts = range(first, end, _PAGES_PER_CALL)
    pages = sum(_resident_pages(libc, start, min(_PAGES_PER_CALL, end - start)) for start in starts)
    return min(nbytes, pages * mmap.PAGESIZE)


def _resident_pages(libc: Any, first: int, count: int) -> int:
    """Return how many of `count` pages are in memory; 0 if some of them have been unmapped."""
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
