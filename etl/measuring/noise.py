"""The noise on a machine during a measurement: other processes, the hypervisor, CPU quotas and the clock frequency."""

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
CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
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
    throttled : float
        As of `ThrottleWatch`.
    """

    def __init__(self) -> None:
        self.own_seconds = 0.0
        self.steal = 0.0
        self.other_processes = 0.0
        self.throttled = 0.0

    def __enter__(self) -> Self:
        self._throttling = ThrottleWatch().__enter__()
        self._system, self._own = cpu_times(), cpu_seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        system, own = cpu_times(), cpu_seconds()
        self._throttling.__exit__(kind, error, trace)
        self.throttled = self._throttling.throttled
        self.own_seconds = own - self._own
        total = system.total - self._system.total
        if total > 0:
            self.steal = (system.steal - self._system.steal) / total
            others = system.busy - self._system.busy - self.own_seconds
            # The system counts in ticks, which are coarse for a short block.
            self.other_processes = max(0.0, others / total)


class ThrottleWatch:
    """A context manager that measures how often a CPU quota of a control group stopped this process in the block.

    Attributes
    ----------
    throttled : float
        The share of the periods of the quota (a tenth of a second each, by default) in which it was used up; the
        highest of the groups around this process.
    """

    def __init__(self) -> None:
        self.throttled = 0.0

    def __enter__(self) -> Self:
        self._before = _quota_periods()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for group, (periods, throttled) in _quota_periods().items():
            periods_before, throttled_before = self._before.get(group, (0, 0))
            if periods > periods_before:
                share = (throttled - throttled_before) / (periods - periods_before)
                self.throttled = max(self.throttled, share)


def _quota_periods() -> dict[Path, tuple[int, int]]:
    """Return all periods of the CPU quotas around this process, and those in which each was used up, by group."""
    found = {}
    try:
        lines = OWN_GROUP.read_text().splitlines()
    except OSError:
        lines = []
    own = {name: path for _, names, path in (line.split(":", 2) for line in lines) for name in names.split(",")}
    # Version 2 has no name for its only hierarchy. In a container, the root may be the group itself.
    for root, path in ((CGROUPS, own.get("", "/")), (CGROUPS / "cpu", own.get("cpu", "/"))):
        group = root / path.lstrip("/")
        for each in (group, *group.parents[: len(group.parts) - len(root.parts)]):
            try:
                counts = dict(line.split() for line in (each / "cpu.stat").read_text().splitlines())
                found[each] = int(counts["nr_periods"]), int(counts["nr_throttled"])
            except (OSError, ValueError, KeyError):  # the group has no quota
                continue
    return found


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
