"""A policy for the heap: whether glibc keeps freed memory, and how much the process may allocate."""

from __future__ import annotations

import mmap
import sys
from contextlib import ExitStack
from typing import ClassVar

import psutil

from etl.arguments import parse_nbytes
from etl.runtime import glibc
from etl.runtime.audit import Audit
from etl.runtime.policy import Policy
from etl.runtime.resources import available_nbytes

KINDS = ("default", "retain", "preallocate:SIZE", "limit:SIZE")
# Above glibc's largest mapping threshold, so that without a policy the block is unmapped when it is freed.
PROBE_NBYTES = 2 * glibc.MAX_MMAP_THRESHOLD


class HeapPolicy(Policy):
    """A context manager that configures glibc's allocator, or limits the process's memory.

    Worker processes of etl that start while it is in force do the same; a limit is that of each process, and what is
    preallocated is preallocated in this process alone.

    To both limit and retain, nest two policies.

    Parameters
    ----------
    policy : str
        "default" changes nothing. An allocation above M_MMAP_THRESHOLD gets a fresh mapping, which is unmapped when it
        is freed, so that every new batch costs a page fault for each 4 KiB.

        "retain" keeps freed pages in the process. It sets M_MMAP_MAX to 0, so that no allocation gets a mapping of its
        own, and M_TRIM_THRESHOLD to its maximum. (M_MMAP_THRESHOLD cannot be raised above 32 MiB, and batches may be
        larger.)

        "preallocate:SIZE", with a size such as 2GB, allocates that much at once, touches every page, and retains it.

        "limit:SIZE" sets RLIMIT_DATA (heap, stacks of threads and private mappings, but neither shared memory nor
        mapped files). Allocations beyond it fail with `MemoryError`, instead of the system killing the process.

    Raises
    ------
    ValueError
        If the policy is unknown or its size is invalid.
    MemoryError
        On entering, if less memory is available than has to be preallocated.
    RuntimeError
        On entering, if the policy is in force already, `malloc` is not glibc's, mallopt refuses, or the process already
        has more data than the limit; for a limit, if the system is not Linux.

    Notes
    -----
    mallopt cannot report the former values. The last policy to end therefore sets the values that glibc reaches by
    adjusting itself, with fresh mappings for allocations above 32 MiB, and returns free pages to the system.

    Once malloc has found no memory in a thread, that thread uses another arena, which maps blocks of 64 MiB and more
    afresh under any policy. `audit` then reports the policy as inert.
    """

    # Number of retaining policies in force: the allocator is shared by the whole process.
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
        self._resident_nbytes = 0

    def _put_in_force(self, stack: ExitStack) -> None:
        if self._kind == "limit":
            self._limit(stack)
        elif self._kind != "default":
            self._retain(stack)

    def audit(self) -> Audit:
        """Report what is in force and what it does; raise `RuntimeError` outside of the `with` block.

        Allocates 64 MiB.
        """
        self._require_in_force()
        if self._kind == "limit":
            return self._audit_limit()
        # This works with any allocator.
        keeps = glibc.freed_and_resident(glibc.c_library(), PROBE_NBYTES) > PROBE_NBYTES // 2
        effect = f"a block of {PROBE_NBYTES:,} bytes {'stays in the process' if keeps else 'is given back'} when freed"
        if self._kind == "preallocate":
            effect += f", {self._resident_nbytes:,} bytes were resident at the start"
        in_force = f"{HeapPolicy._retaining} policies that retain"
        return Audit("heap", self.policy, in_force, effect, self._alarm(keeps))

    def _alarm(self, keeps: bool) -> str:
        """Return an alarm if freed memory is not retained or was not preallocated, else an empty string."""
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
                f"{glibc.MAX_INT:,} bytes, beyond which glibc gives free memory back."
            )
        return ""

    def _retain(self, stack: ExitStack) -> None:
        libc = glibc.require_glibc(f"heap policy {self.policy!r}")
        glibc.set_option(libc, glibc.M_MMAP_MAX, 0)
        glibc.set_option(libc, glibc.M_TRIM_THRESHOLD, glibc.MAX_INT)
        HeapPolicy._retaining += 1
        stack.callback(_stop_retaining)
        if self._kind == "preallocate":
            available = available_nbytes()
            if self._nbytes > available:  # touching so much would make the system kill a process
                raise MemoryError(f"heap policy {self.policy!r}: of {self._nbytes:,} bytes {available:,} are available")
            self._resident_nbytes = glibc.freed_and_resident(libc, self._nbytes)

    def _limit(self, stack: ExitStack) -> None:
        if sys.platform != "linux":
            raise RuntimeError(f"heap policy {self.policy!r} needs Linux, where RLIMIT_DATA counts what malloc maps")
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        used = data_nbytes()
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
            effect = f"the process has {data_nbytes():,} and cannot have as many again"
        else:
            effect = f"{self._nbytes:,} bytes beside what it has were mapped all the same"
            alarm = f"{asked}, and {effect}: this system does not count them. Limit the container's memory instead."
        if soft != self._nbytes:
            alarm = f"{asked}, and {in_force} is in force: something in this process calls setrlimit. Remove that."
        return Audit("heap", self.policy, in_force, effect, alarm)


def _stop_retaining() -> None:
    HeapPolicy._retaining -= 1
    if HeapPolicy._retaining == 0:
        libc = glibc.require_glibc("heap policy")
        glibc.set_option(libc, glibc.M_MMAP_MAX, glibc.DEFAULT_MMAP_MAX)
        glibc.set_option(libc, glibc.M_MMAP_THRESHOLD, glibc.MAX_MMAP_THRESHOLD)
        glibc.set_option(libc, glibc.M_TRIM_THRESHOLD, glibc.ADJUSTED_TRIM_THRESHOLD)
        libc.malloc_trim(0)


def data_nbytes() -> int:
    """Return the size that RLIMIT_DATA limits, in bytes."""
    return int(psutil.Process().memory_info().data)
