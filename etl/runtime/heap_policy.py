"""What the C library's allocator does with memory that is freed, and how much there may be."""

from __future__ import annotations

import mmap
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from etl.arguments import parse_nbytes
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
        self._resident_nbytes = 0

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
        # Of any allocator.
        keeps = glibc.freed_and_resident(glibc.c_library(), PROBE_NBYTES) > PROBE_NBYTES // 2
        effect = f"a block of {PROBE_NBYTES:,} bytes {'stays in the process' if keeps else 'is given back'} when freed"
        if self._kind == "preallocate":
            effect += f", {self._resident_nbytes:,} bytes were resident at the start"
        in_force = f"{HeapPolicy._retaining} policies that retain"
        return Audit("heap", self.policy, in_force, effect, self._alarm(keeps))

    def _alarm(self, keeps: bool) -> str:
        """Say that freed memory is not kept, which all policies but the default are for, or was not preallocated."""
        if self._kind == "default":
            return ""
        asked = f"heap policy {self.policy} was asked for"
        if not keeps:
            return (
                f"{asked}, and freed memory is given back to the system all the same: other code has called mallopt "
                "since, or malloc found no memory once. Remove that call, or give the process more memory."
            )
        if self._resident_nbytes < 0.9 * self._nbytes:
            return (
                f"{asked}, and {self._resident_nbytes:,} bytes of that stayed in memory: preallocate at most "
                f"{glibc.LARGEST_INT:,} bytes, beyond which glibc gives free memory back."
            )
        return ""

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
        self._resident_nbytes = glibc.freed_and_resident(glibc.glibc(f"heap policy {self.policy!r}"), self._nbytes)

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
        asked, alarm = f"heap policy {self.policy} was asked for", ""
        try:
            mmap.mmap(-1, self._nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        except OSError:
            effect = f"the process has {_data_nbytes():,} and cannot have as many again"
        else:
            effect = f"{self._nbytes:,} bytes beside what it has were mapped all the same"
            alarm = f"{asked}, and {effect}: this system does not count them. Limit the container's memory instead."
        if soft != self._nbytes:
            alarm = f"{asked}, and {in_force} is in force: something in this process calls setrlimit. Remove that."
        return Audit("heap", self.policy, in_force, effect, alarm)


def _stop_retaining() -> None:
    HeapPolicy._retaining -= 1
    if HeapPolicy._retaining == 0:
        libc = glibc.glibc("heap policy")
        glibc.set_option(libc, glibc.M_MMAP_MAX, glibc.DEFAULT_MMAP_MAX)
        glibc.set_option(libc, glibc.M_MMAP_THRESHOLD, glibc.LARGEST_MMAP_THRESHOLD)
        glibc.set_option(libc, glibc.M_TRIM_THRESHOLD, glibc.ADJUSTED_TRIM_THRESHOLD)
        libc.malloc_trim(0)


def _data_nbytes() -> int:
    """What RLIMIT_DATA counts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmData")
