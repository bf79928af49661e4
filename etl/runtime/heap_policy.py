"""What the C library's allocator does with memory that is freed."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self

POLICIES = ("default", "retain")

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


class HeapPolicy:
    """A context manager that sets glibc's allocator.

    `default` leaves it as it is: an allocation above M_MMAP_THRESHOLD is mapped afresh and given back when freed, so
    that every new batch costs a page fault for each 4 KiB of it. `retain` keeps freed pages in the process: M_MMAP_MAX
    = 0 (no allocation is mapped on its own; the threshold itself cannot be raised above 32 MiB, and batches can) and
    the largest M_TRIM_THRESHOLD. mallopt has no way to ask what was in force, so the last `retain` that is left sets
    what glibc's own adjusting ends at, allocations above 32 MiB mapped afresh, and gives free pages back to the system.
    Raises `ValueError` for another name, `RuntimeError` where the C library has no mallopt or refuses.
    """

    # How many `retain` are in force: the allocator is the whole process's.
    _retaining: ClassVar[int] = 0

    def __init__(self, policy: str = "default") -> None:
        if policy not in POLICIES:
            raise ValueError(f"unknown heap policy {policy!r}; known: {', '.join(POLICIES)}")
        self.policy = policy

    def __enter__(self) -> Self:
        if self.policy == "retain":
            libc = _glibc()
            _set(libc, M_MMAP_MAX, 0)
            _set(libc, M_TRIM_THRESHOLD, LARGEST_INT)
            HeapPolicy._retaining += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.policy != "retain":
            return
        HeapPolicy._retaining -= 1
        if HeapPolicy._retaining == 0:
            libc = _glibc()
            _set(libc, M_MMAP_MAX, DEFAULT_MMAP_MAX)
            _set(libc, M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
            _set(libc, M_TRIM_THRESHOLD, ADJUSTED_TRIM_THRESHOLD)
            libc.malloc_trim(0)


def _glibc() -> Any:
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "mallopt") and hasattr(libc, "gnu_get_libc_version")):
        raise RuntimeError("heap policy 'retain' needs glibc's mallopt, which this C library has not; use 'default'")
    return libc


def _set(libc: Any, parameter: int, value: int) -> None:
    if libc.mallopt(parameter, value) != 1:
        raise RuntimeError(f"mallopt refused parameter {parameter} = {value}")
