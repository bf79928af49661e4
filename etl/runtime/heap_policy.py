"""What the C library's allocator does with memory that is freed, and how much there may be."""

from __future__ import annotations

import mmap
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

import psutil

from etl.nbytes import parse_nbytes
from etl.runtime import glibc
from etl.runtime.audit import Audit
from etl.runtime.memory import available_nbytes

if TYPE_CHECKING:
    from typing_extensions import Self

KINDS = ("default", "retain", "preallocate:SIZE", "limit:SIZE")
# Above what glibc maps on its own at most, so that without a policy it is given back when it is freed.
PROBE_NBYTES = 2 * glibc.LARGEST_MMAP_THRESHOLD


class HeapPolicy:
    """A context manager that sets glibc's allocator, or limits the process's memory.

    `default` leaves it as it is: an allocation above M_MMAP_THRESHOLD is mapped afresh and given back when freed, so
    that every new batch costs a page fault for each 4 KiB of it. `retain` keeps freed pages in the process: M_MMAP_MAX
    = 0 (no allocation is mapped on its own; the threshold itself cannot be raised above 32 MiB, and batches can) and
    the largest M_TRIM_THRESHOLD. `preallocate:SIZE`, such as 2GB, takes so much at once, touches every page, and
    retains. mallopt has no way to ask what was in force, so the last of these that is left sets what glibc's own
    adjusting ends at, allocations above 32 MiB mapped afresh, and gives free pages back to the system.

    A thread in which malloc has once found no memory has another arena from then on, which maps blocks of 64 MiB and
    more afresh whatever the policy: `audit` then says that it is inert.

    `limit:SIZE` has every allocation fail, with `MemoryError`, that would make the process's data larger (RLIMIT_DATA:
    heap, stacks of threads and private mappings; neither shared memory nor mapped files), rather than have the system
    kill it. To limit and retain, enter one in the other.

    Raises `ValueError` for another name or size, `MemoryError` where there is not as much to preallocate,
    `RuntimeError` when entered twice, where `malloc` is not glibc's or mallopt refuses, where the process has more data
    than the limit already, and for a limit on another system than Linux.
    """

    # How many are in force that retain: the allocator is the whole process's.
    _retaining: ClassVar[int] = 0

    def __init__(self, policy: str = "default") -> None:
        self.policy = policy
        self._kind, _, argument = policy.partition(":")
        self._nbytes = 0
        if self._kind in ("preallocate", "limit"):
            try:
                self._nbytes = parse_nbytes(argument)
            except ValueError as error:
                raise ValueError(f"heap policy {policy!r}: {error}") from None
        elif policy not in KINDS:
            raise ValueError(f"unknown heap policy {policy!r}; known: {', '.join(KINDS)}")
        self._entered: ExitStack | None = None
        self._grown_nbytes = 0

    def __enter__(self) -> Self:
        if self._entered is not None:
            raise RuntimeError("this HeapPolicy is in force already")
        with ExitStack() as stack:
            if self._kind == "limit":
                self._limit(stack)
            elif self._kind != "default":
                self._retain(stack)
                self._preallocate()
            self._entered = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.close()

    def audit(self) -> Audit:
        """What is in force, and what that does; only while it is. Allocates 64 MiB. Raises `RuntimeError` where it is
        not in force.
        """
        if self._entered is None:
            raise RuntimeError("this HeapPolicy is not in force")
        if self._kind == "limit":
            return self._audit_limit()
        keeps = _keeps_freed_pages()
        effect = f"a block of {PROBE_NBYTES:,} bytes {'stays in the process' if keeps else 'is given back'} when freed"
        if self._kind == "preallocate":
            effect += f", {self._grown_nbytes:,} bytes became resident at the start"
        in_force = f"{HeapPolicy._retaining} policies that retain"
        missing = self._kind == "preallocate" and self._grown_nbytes < 0.9 * self._nbytes
        return Audit("heap", self.policy, in_force, effect, self._kind != "default" and (missing or not keeps))

    def _retain(self, stack: ExitStack) -> None:
        libc = glibc.glibc(f"heap policy {self.policy!r}")
        glibc.set_option(libc, glibc.M_MMAP_MAX, 0)
        glibc.set_option(libc, glibc.M_TRIM_THRESHOLD, glibc.LARGEST_INT)
        HeapPolicy._retaining += 1
        stack.callback(_stop_retaining)

    def _preallocate(self) -> None:
        if not self._nbytes:
            return
        available = available_nbytes()
        if self._nbytes > available:  # touching it would have the system kill a process
            raise MemoryError(f"heap policy {self.policy!r}: of {self._nbytes:,} bytes {available:,} are available")
        before = psutil.Process().memory_info().rss
        with glibc.block(glibc.glibc(f"heap policy {self.policy!r}"), self._nbytes):
            pass
        self._grown_nbytes = psutil.Process().memory_info().rss - before

    def _limit(self, stack: ExitStack) -> None:
        if sys.platform != "linux":
            raise RuntimeError(f"heap policy {self.policy!r} needs Linux, where RLIMIT_DATA counts what malloc maps")
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        used = _data_nbytes()
        if self._nbytes <= used:
            raise RuntimeError(f"heap policy {self.policy!r}: the process has {used:,} bytes of data already")
        if hard != resource.RLIM_INFINITY and self._nbytes > hard:
            raise RuntimeError(f"heap policy {self.policy!r}: this process may set at most {hard:,} bytes")
        stack.callback(resource.setrlimit, resource.RLIMIT_DATA, (soft, hard))
        resource.setrlimit(resource.RLIMIT_DATA, (self._nbytes, hard))

    def _audit_limit(self) -> Audit:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
        in_force = "no limit" if soft == resource.RLIM_INFINITY else f"RLIMIT_DATA of {soft:,} bytes"
        try:
            mmap.mmap(-1, self._nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        except OSError:
            effect, is_inert = f"the process has {_data_nbytes():,} and cannot have as many again", False
        else:
            effect, is_inert = f"{self._nbytes:,} bytes beside what it has were mapped all the same", True
        return Audit("heap", self.policy, in_force, effect, is_inert or soft != self._nbytes)


def _stop_retaining() -> None:
    HeapPolicy._retaining -= 1
    if HeapPolicy._retaining == 0:
        libc = glibc.glibc("heap policy")
        glibc.set_option(libc, glibc.M_MMAP_MAX, glibc.DEFAULT_MMAP_MAX)
        glibc.set_option(libc, glibc.M_MMAP_THRESHOLD, glibc.LARGEST_MMAP_THRESHOLD)
        glibc.set_option(libc, glibc.M_TRIM_THRESHOLD, glibc.ADJUSTED_TRIM_THRESHOLD)
        libc.malloc_trim(0)


def _keeps_freed_pages() -> bool:
    """Whether a large block that was written to and freed stays resident; of any allocator."""
    process = psutil.Process()
    with glibc.block(glibc.c_library(), PROBE_NBYTES):
        held = process.memory_info().rss
    return held - process.memory_info().rss < PROBE_NBYTES // 2


def _data_nbytes() -> int:
    """What RLIMIT_DATA counts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmData")
