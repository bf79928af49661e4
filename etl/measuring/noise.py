"""What else the machine does while something is timed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from typing_extensions import Self

STAT = Path("/proc/stat")
CPU_INFO = Path("/proc/cpuinfo")
PROBE = bytes(1 << 20)
PROBES = 5


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since the system started, all CPUs together: in total, stolen by the hypervisor, and at work."""

    total: float
    steal: float
    busy: float


class NoiseWatch:
    """A context manager: the CPU seconds of this process and its children (`own_seconds`), which share of all CPUs'
    time was stolen by the hypervisor (`steal`), and which share other processes had (`other_processes`).
    """

    def __init__(self) -> None:
        self.own_seconds = 0.0
        self.steal = 0.0
        self.other_processes = 0.0

    def __enter__(self) -> Self:
        self._system, self._own = cpu_times(), own_cpu_seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        system, own = cpu_times(), own_cpu_seconds()
        self.own_seconds = own - self._own
        total = system.total - self._system.total
        if total > 0:
            self.steal = (system.steal - self._system.steal) / total
            others = system.busy - self._system.busy - self.own_seconds
            # The system counts in ticks, which a short time has few of.
            self.other_processes = max(0.0, others / total)


def cpu_times() -> CpuTimes:
    """As the first line of /proc/stat (proc(5)) tells them."""
    ticks = [int(each) for each in STAT.read_text().partition("\n")[0].split()[1:]]
    user, nice, system, idle, waiting, hardware, software, steal = (
        each / os.sysconf("SC_CLK_TCK") for each in ticks[:8]
    )
    busy = user + nice + system + hardware + software
    return CpuTimes(busy + idle + waiting + steal, steal, busy)


def own_cpu_seconds() -> float:
    """CPU seconds of this process, of its children and of theirs, of those that have ended and of those that run."""
    # Which does not count in ticks, as os.times does.
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            times = child.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def probe_speed() -> float:
    """Seconds of one fixed calculation in the CPU's registers and caches, the fastest of a few: it takes longer when
    the clock frequency falls, or when a neighbour shares the core.
    """
    fastest = float("inf")
    for _ in range(PROBES):
        started = time.perf_counter()
        hashlib.sha256(PROBE).digest()
        fastest = min(fastest, time.perf_counter() - started)
    return fastest


def frequencies() -> list[float]:
    """The clock frequency of each CPU in MHz, as far as the system tells."""
    try:
        return [float(each) for each in re.findall(r"cpu MHz\s*:\s*([\d.]+)", CPU_INFO.read_text())]
    except OSError:
        return []
