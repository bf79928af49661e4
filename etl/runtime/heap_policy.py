"""What the C library's allocator does with memory that is freed."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

POLICIES = ("default", "retain")

# Parameters of mallopt and their defaults (glibc's malloc.h, mallopt(3)).
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
DEFAULT_TRIM_THRESHOLD = 128 << 10
DEFAULT_MMAP_MAX = 65536
LARGEST_INT = 2**31 - 1


class HeapPolicy:
    """A context manager that sets glibc's allocator.

    `default` leaves it as it is: an allocation above M_MMAP_THRESHOLD is mapped afresh and given back when freed, so
    that every new batch costs a page fault for each 4 KiB of it. `retain` keeps freed pages in the process: M_MMAP_MAX
    = 0 (no allocation is mapped on its own; the threshold itself cannot be raised above 32 MiB, and batches can) and
    the largest M_TRIM_THRESHOLD. mallopt has no way to ask what was in force, so leaving sets glibc's defaults and
    gives free pages back to the system. Raises `ValueError` for another name, `RuntimeError` where the C library has
    no mallopt or refuses.
    """

    def __init__(self, policy: str = "default") -> None:
        if policy not in POLICIES:
            raise ValueError(f"unknown heap policy {policy!r}; known: {', '.join(POLICIES)}")
        self.policy = policy

    def __enter__(self) -> Self:
        if self.policy == "retain":
            libc = _glibc()
            _set(libc, M_MMAP_MAX, 0)
            _set(libc, M_TRIM_THRESHOLD, LARGEST_INT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.policy == "retain":
            libc = _glibc()
            _set(libc, M_MMAP_MAX, DEFAULT_MMAP_MAX)
            _set(libc, M_TRIM_THRESHOLD, DEFAULT_TRIM_THRESHOLD)
            libc.malloc_trim(0)


def _glibc() -> Any:
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version")):
        raise RuntimeError("heap policy 'retain' needs glibc's mallopt, which this C library has not; use 'default'")
    return libc


def _set(libc: Any, parameter: int, value: int) -> None:
    if libc.mallopt(parameter, value) != 1:
        raise RuntimeError(f"mallopt refused parameter {parameter} = {value}")
