"""The noise on a machine during a measurement: other processes, the hypervisor, CPU quotas and the clock frequency."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from .process_tree import children, cpu_seconds
from .values import JsonValues

if TYPE_CHECKING:
    from typing import Self

STAT = Path("/proc/stat")
CPU_INFO = Path("/proc/cpuinfo")
CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
HASHED = bytes(1 << 20)
HASHES = 5
# More than a CPU's own caches and its share of the last level. Larger copies are no steadier, and getting their memory
# takes longer: now half of the 45 ms of a probe.
COPIED_NBYTES = 48 << 20
COPIES = 2


@dataclass(frozen=True)
class ProbeSeconds(JsonValues):
    """Times of two fixed pieces of work, which have nothing to do with what is measured.

    Attributes
    ----------
    cpu : float
        Seconds of a calculation in the registers and caches of a CPU. It takes longer if the clock frequency falls, or
        if another process shares the core.
    memory : float
        Seconds to copy more than the caches hold. It takes longer if others, such as virtual machines of the same host,
        load the memory.
    """

    cpu: float
    memory: float


# Limits for a sample that counts. They were calibrated on a virtual machine with 2 CPUs, in minutes that were quiet and
# minutes with one busy neighbour. Probes tell what other virtual machines of the host do; neighbours in the same one
# are told by their CPU time.
# On a quiet machine, the clock changes in steps of a sixth, and a copy takes up to 1.6 times as long as the quickest.
MAX_SLOWDOWN = ProbeSeconds(cpu=1.25, memory=1.75)
# It was 0 in nearly all quiet seconds.
MAX_STEAL = 0.02
# Services of the system are up to 1.2%; one busy neighbour takes 42% or more.
MAX_OTHER_PROCESSES = 0.05
# More of the wall time than this is in none of its parts if the loop lost its CPU between two readings of the clock.
MAX_UNEXPLAINED = 0.01
MAX_RETAKEN_SHARE = 0.2


@dataclass(frozen=True)
class CpuTimes:
    """Times of some CPUs together since the system started, in seconds.

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

    def __exit__(self, *_: object) -> None:
        for group, (periods, throttled) in _quota_periods().items():
            periods_before, throttled_before = self._before.get(group, (0, 0))
            if periods > periods_before:
                share = (throttled - throttled_before) / (periods - periods_before)
                self.throttled = max(self.throttled, share)


class NoiseWatch(ThrottleWatch):
    """A context manager that also measures how the CPUs that this process may use were shared during the block.

    The system counts in ticks of 10 ms. What that leaves unsure is not taken for noise.

    Attributes
    ----------
    own_seconds : float
        CPU seconds of this process and its children.
    steal : float
        The share of the time of these CPUs that the hypervisor took.
    other_processes : float
        The share of it that other processes used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.own_seconds = 0.0
        self.steal = 0.0
        self.other_processes = 0.0

    def __enter__(self) -> Self:
        super().__enter__()
        self._cpus = os.sched_getaffinity(0)
        self._system, self._own = cpu_times(self._cpus), cpu_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        system, own = cpu_times(self._cpus), cpu_seconds()
        super().__exit__()
        self.own_seconds = own - self._own
        total = system.total - self._system.total
        if total > 0:
            # User and system time are cut to ticks at both ends: of the CPUs, and of each child that still runs.
            tick = 1 / os.sysconf("SC_CLK_TCK")
            unsure = (4 + 2 * len(children())) * tick
            others = system.busy - self._system.busy - self.own_seconds
            self.steal = max(0.0, system.steal - self._system.steal - tick) / total
            self.other_processes = max(0.0, others - unsure) / total


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


def cpu_times(cpus: Collection[int]) -> CpuTimes:
    """Return the times of these CPUs in seconds, according to /proc/stat (proc(5)).

    They are those of all CPUs if it does not list these: some containers show their own CPUs under other numbers.
    """
    every, *lines = STAT.read_text().splitlines()
    names = {f"cpu{each}" for each in cpus}
    listed = [line for line in lines if line.partition(" ")[0] in names]
    chosen = listed if len(listed) == len(names) else [every]
    ticks = zip(*(map(int, line.split()[1:9]) for line in chosen), strict=True)
    user, nice, system, idle, waiting, hardware, software, steal = (
        sum(each) / os.sysconf("SC_CLK_TCK") for each in ticks
    )
    busy = user + nice + system + hardware + software
    return CpuTimes(busy + idle + waiting + steal, steal, busy)


def probe_speed() -> ProbeSeconds:
    """Return the seconds of fixed work for the CPU and for memory, the quickest of a few tries of each."""
    cpu = least_seconds(lambda: hashlib.sha256(HASHED).digest(), HASHES)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE  # page faults would take longer than the copy
    with mmap.mmap(-1, 2 * COPIED_NBYTES, flags=flags) as memory:
        whole = memoryview(memory)
        source, target = whole[:COPIED_NBYTES], whole[COPIED_NBYTES:]

        def copy() -> None:
            target[:] = source

        seconds = least_seconds(copy, COPIES)
        for view in (source, target, whole):
            view.release()
    return ProbeSeconds(cpu, seconds)


def least_seconds(work: Callable[[], object], tries: int) -> float:
    """Return the seconds of the quickest of a few tries."""
    quickest = float("inf")
    for _ in range(tries):
        started = time.perf_counter()
        work()
        quickest = min(quickest, time.perf_counter() - started)
    return quickest


def quickest(probes: Sequence[ProbeSeconds]) -> ProbeSeconds:
    """Return the quickest of `probes`, of each kind."""
    return ProbeSeconds(min(each.cpu for each in probes), min(each.memory for each in probes))


class Probed(Protocol):
    """A sample that says what disturbed it."""

    @property
    def probes(self) -> list[ProbeSeconds]:
        """Seconds of fixed work before and after it."""

    @property
    def steal(self) -> float:
        """Share of the CPUs that the hypervisor took."""

    @property
    def other_processes(self) -> float:
        """Share of the CPUs that other processes used."""

    @property
    def unexplained(self) -> float:
        """Share of its wall time that is in none of its parts."""


AnySample = TypeVar("AnySample", bound=Probed)


def describe_disturbance(sample: Probed, reference: ProbeSeconds) -> str:
    """Return why a sample does not count, or "" if nothing disturbed it. Its own time has no part in this.

    A CPU quota that is used up is not a disturbance: it is there in every sample, so that none would count.
    """
    slowest_cpu, slowest_memory = max(each.cpu for each in sample.probes), max(each.memory for each in sample.probes)
    if sample.other_processes > MAX_OTHER_PROCESSES:
        return f"other processes used {sample.other_processes:.0%} of the CPUs"
    if sample.steal > MAX_STEAL:
        return f"the hypervisor took {sample.steal:.0%} of the CPUs"
    if slowest_cpu > MAX_SLOWDOWN.cpu * reference.cpu:
        return f"the CPU was {slowest_cpu / reference.cpu:.2f} times slower than at its quickest"
    if slowest_memory > MAX_SLOWDOWN.memory * reference.memory:
        return f"memory was {slowest_memory / reference.memory:.2f} times slower than at its quickest"
    return ""


class NoiseGate:
    """Has samples taken again at once if they were disturbed, or if their parts do not add up.

    Up to a fifth of all are taken again for either reason. On a busy machine all samples are disturbed, which uses up
    the one fifth; one that does not add up would disqualify its strategy, so it has a fifth of its own.

    Attributes
    ----------
    retaken : list of str
        Why samples were taken again: a sentence for each that does not count.
    disturbed : list of str
        The same of samples that count nevertheless, since too many had been taken again.
    """

    def __init__(self) -> None:
        self.retaken: list[str] = []
        self.disturbed: list[str] = []
        self._probes: list[ProbeSeconds] = []
        # How many were taken again although their parts add up, and because they do not.
        self._counts = {True: 0, False: 0}

    def take(self, name: str, samples: int, measure: Callable[[], AnySample]) -> AnySample:
        """Return a sample that `measure` takes, of which there are to be `samples` in all."""
        while True:
            sample = measure()
            self._probes += sample.probes
            adds_up = abs(sample.unexplained) <= MAX_UNEXPLAINED
            reason = f"{sample.unexplained:.2%} of its wall time is unexplained"
            if adds_up:
                reason = describe_disturbance(sample, quickest(self._probes))
            if not reason:
                return sample
            if self._counts[adds_up] + 1 > MAX_RETAKEN_SHARE * samples:
                self.disturbed.append(f"{name}: {reason}")
                return sample
            self._counts[adds_up] += 1
            self.retaken.append(f"{name}: {reason}")


def frequencies() -> list[float]:
    """Return the clock frequency of each CPU in MHz, or an empty list if the system does not report it."""
    try:
        return [float(each) for each in re.findall(r"cpu MHz\s*:\s*([\d.]+)", CPU_INFO.read_text())]
    except OSError:
        return []
