"""The noise on a machine during a measurement: other processes, the hypervisor and the clock frequency."""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from .process_tree import cpu_seconds

if TYPE_CHECKING:
    from typing_extensions import Self

STAT = Path("/proc/stat")
CPU_INFO = Path("/proc/cpuinfo")
PROBE = bytes(1 << 20)
PROBES = 5


@dataclass(frozen=True)
class CpuTimes:
    """Times of all CPUs together since the system started, in seconds.

    Attributes
    ----------
    total : float
        All of it, idle time included.
    steal : float
        Taken by the hypervisor.
    busy : float
        Used by processes and the kernel.
    """

    total: float
    steal: float
    busy: float


class NoiseWatch:
    """A context manager that measures how the CPUs were shared during the block.

    Attributes
    ----------
    own_seconds : float
        CPU seconds of this process and its children.
    steal : float
        The share of the time of all CPUs that the hypervisor took.
    other_processes : float
        The share of the time of all CPUs that other processes used.
    """

    def __init__(self) -> None:
        self.own_seconds = 0.0
        self.steal = 0.0
        self.other_processes = 0.0

    def __enter__(self) -> Self:
        self._system, self._own = cpu_times(), cpu_seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        system, own = cpu_times(), cpu_seconds()
        self.own_seconds = own - self._own
        total = system.total - self._system.total
        if total > 0:
            self.steal = (system.steal - self._system.steal) / total
            others = system.busy - self._system.busy - self.own_seconds
            # The system counts in ticks, which are coarse for a short block.
            self.other_processes = max(0.0, others / total)


def cpu_times() -> CpuTimes:
    """Return the first line of /proc/stat (proc(5)) in seconds."""
    ticks = [int(each) for each in STAT.read_text().partition("\n")[0].split()[1:]]
    user, nice, system, idle, waiting, hardware, software, steal = (
        each / os.sysconf("SC_CLK_TCK") for each in ticks[:8]
    )
    busy = user + nice + system + hardware + software
    return CpuTimes(busy + idle + waiting + steal, steal, busy)


def probe_speed() -> float:
    """Return the seconds of a fixed calculation in the registers and caches of the CPU, the fastest of a few.

    It takes longer if the clock frequency falls, or if another process shares the core.
    """
    fastest = float("inf")
    for _ in range(PROBES):
        started = time.perf_counter()
        hashlib.sha256(PROBE).digest()
        fastest = min(fastest, time.perf_counter() - started)
    return fastest


def frequencies() -> list[float]:
    """Return the clock frequency of each CPU in MHz, or an empty list if the system does not report it."""
    try:
        return [float(each) for each in re.findall(r"cpu MHz\s*:\s*([\d.]+)", CPU_INFO.read_text())]
    except OSError:
        return []
