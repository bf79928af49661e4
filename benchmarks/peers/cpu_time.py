"""CPU time of this process and all its descendants."""

from __future__ import annotations

import resource

import psutil


def cpu_seconds() -> float:
    """User and system time of this process and of all that it started, those that have ended included.

    Living descendants are counted in ticks of the kernel, 10 ms.
    """
    total = sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
    for child in psutil.Process().children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])  # its own and those of its ended children
        except psutil.NoSuchProcess:
            continue  # it ended between being listed and being read, and is among the ended of its parent
    return total
