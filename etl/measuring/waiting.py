"""The activity of loading while the training loop waits for a batch: on a CPU, ready for one, or waiting for data.

A loader that waits for storage uses no CPU, wherever its data are: on a disk, in a network file system or behind a
socket. So two times of the threads and processes that load are measured, from the kernel's scheduler: how long they
used a CPU, and how long they were ready to but others had it, which is not the doing of storage. In the rest of the
wait, they waited for data.

If several load, one may use a CPU while another waits for data, or for a lock that the first one holds. Then the CPU
times only limit the answer, and between the limits the kernel's pressure stall information decides (PSI,
https://docs.kernel.org/accounting/psi.html): how long CPUs were idle because tasks of the machine waited for I/O.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .values import JsonValues

if TYPE_CHECKING:
    from typing import Self

PROC = Path("/proc")
# A thread loads, or computes, if it uses at least this share of the CPU time of the busiest one that does.
BUSY_SHARE = 0.05
# The times are unknown if threads that are not watched used a CPU for more than this share of the epoch.
MAX_UNSEEN_SHARE = 0.1
# Waits are left out if watching them all would take more than this share of the epoch.
MAX_COST_SHARE = 0.003
# PSI knows local disks only. It decides if it has at least this share of the time that is in question.
MIN_PRESSURE_SHARE = 0.05
LINE_NBYTES = 512
_ENDED = "threads that have ended"
FULL_MICROSECONDS = re.compile(rb"full .*total=(\d+)")


@dataclass(frozen=True)
class WaitTimes(JsonValues):
    """Waits of a training loop for its batches, without the very first. Times are in seconds.

    Attributes
    ----------
    waited : float
        All waits that were watched.
    loop_busy : float
        The part in which the loop itself used a CPU, or was ready to.
    loaders_busy : float
        The same for other threads, and processes, that load: their sum, which may be longer than `waited`.
    loaders : int
        How many other threads load, those of worker processes included; 0 if the loop itself loads.
    pressure : float or None
        Time in which CPUs of the machine were idle because tasks waited for I/O. None if there are fewer than two
        loaders, for which CPU times say enough, or if the kernel does not report it.
    """

    waited: float
    loop_busy: float
    loaders_busy: float
    loaders: int
    pressure: float | None

    @property
    def storage(self) -> float | None:
        """Seconds in which data were waited for: from a disk, a network or another process.

        None if it is unknown: several loaders were idle in turns, and not because of a local disk, so they may have
        waited for a network or for each other.
        """
        # Each loader's own share at most, as if no lock was ever waited for; at least while nothing was busy at all.
        busy_each = self.loaders_busy / max(1, self.loaders)
        most = max(0.0, self.waited - max(self.loop_busy, busy_each))
        least = min(most, max(0.0, self.waited - self.loop_busy - self.loaders_busy))
        if self.pressure is None or most - least <= MIN_PRESSURE_SHARE * self.waited:
            return least
        if self.pressure < MIN_PRESSURE_SHARE * (most - least):
            return None
        return min(most, max(least, self.pressure))

    @property
    def method(self) -> str:
        """Source of `storage`: "psi" if pressure stall information had to decide, otherwise "cpu-time"."""
        return "cpu-time" if self.pressure is None else "psi"


class WaitWatch:
    """A context manager that measures the waits of epochs; `begin` and `end` are called around each of them.

    The first wait is not measured. At its end, the threads of this process and of its children that were busy meanwhile
    are taken for those that load. Of short waits only some are watched, so that this takes little time.

    Parameters
    ----------
    max_cost_share : float
        Waits are left out if watching them all would take more than this share of the epoch.
    """

    def __init__(self, max_cost_share: float = MAX_COST_SHARE) -> None:
        self._max_cost_share = max_cost_share
        self._is_first = True
        # None if the times are unknown.
        self._loop: Task | None = None
        self._others: list[Task] = []
        self._pressure: int | None = None
        self._before: dict[str, int] = {}
        self._unseen: dict[str, float] = {}
        self._is_watching = False
        self._cost = self._began = self._cpu = self._seconds = self._process = 0.0
        self._waited = self._loop_busy = self._stalled = 0.0

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):  # a kernel that does not tell these times, or children
            (PROC / "thread-self/children").read_bytes()
            self._before = _cpu_times()
            self._seconds, self._process = -time.perf_counter(), time.process_time()
            loop = Task(str((PROC / "thread-self").readlink()))
            if any(loop.times):  # some kernels have the file and leave it at 0
                self._loop = loop
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is None:
            return
        self._seconds += time.perf_counter()
        watched = {each.name for each in (self._loop, *self._others)}
        try:
            used = _growth(self._before, _cpu_times())
        except OSError:
            self._loop = None
            return
        self._unseen = {name: seconds for name, seconds in used.items() if name not in watched}
        # Threads that have ended are in the time of the process only.
        own = sum(seconds for name, seconds in used.items() if name.startswith(f"{os.getpid()}/"))
        self._unseen[_ENDED] = max(0.0, time.process_time() - self._process - own)

    def begin(self) -> bool:
        """Begin to wait for a batch; return False if `end` would do nothing."""
        if self._loop is None or self._is_first:
            return self._loop is not None
        asked = time.perf_counter()
        self._is_watching = self._cost <= self._max_cost_share * (asked + self._seconds)
        if not self._is_watching:
            return False
        if self._pressure is not None:
            self._stalled -= _seconds_of_pressure(self._pressure)
        for task in self._others:
            task.begin()
        self._loop.begin()
        self._cpu, self._began = time.thread_time(), time.perf_counter()
        self._cost += self._began - asked
        return True

    def end(self) -> None:
        """End to wait, since the batch is there or the epoch has ended."""
        ended, used = time.perf_counter(), time.thread_time()
        if self._loop is None or not (self._is_first or self._is_watching):
            return
        if self._is_first:
            self._is_first = False
            self._find_loaders(self._loop.name)
            self._cost += time.perf_counter() - ended
            return
        # The kernel updates what it tells of a running thread with every tick, but the clock of this one at once.
        self._loop_busy += used - self._cpu
        self._waited += ended - self._began
        self._loop.end()
        for task in self._others:
            task.end()
        if self._pressure is not None:
            self._stalled += _seconds_of_pressure(self._pressure)
        self._cost += time.perf_counter() - ended

    def times(self, computing: Collection[str] = ()) -> WaitTimes | None:
        """Return the times of all waits, or None if they are unknown.

        Parameters
        ----------
        computing : collection of str
            `BusyThreads.names` while nothing loads: these threads spin for a while after a step, which is not loading.
        """
        unseen = sum(seconds for name, seconds in self._unseen.items() if name not in computing)
        if self._loop is None or unseen > MAX_UNSEEN_SHARE * self._seconds:
            return None
        loaders = [each for each in self._others if each.name not in computing]
        return WaitTimes(
            waited=self._waited,
            loop_busy=self._loop_busy + self._loop.queued,
            loaders_busy=sum(each.used + each.queued for each in loaders),
            loaders=len(loaders),
            pressure=self._stalled if self._pressure is not None and len(loaders) > 1 else None,
        )

    def _find_loaders(self, loop: str) -> None:
        try:
            names = _busiest(self._before, _cpu_times())
        except OSError:
            self._loop = None
            return
        for name in names:
            if name != loop:
                with contextlib.suppress(OSError):  # it has ended
                    self._others.append(Task(name))
        if len(self._others) > 1:
            with contextlib.suppress(OSError):  # a kernel without it, or it is switched off
                file = _open_for(self, PROC / "pressure/io")
                _seconds_of_pressure(file)
                self._pressure = file


class BusyThreads:
    """A context manager that finds the threads of this process and its descendants that are busy during the block.

    Attributes
    ----------
    names : list of str
        One for each of them; empty on a kernel that does not tell.
    """

    def __init__(self) -> None:
        self.names: list[str] = []

    def __enter__(self) -> Self:
        self._before: dict[str, int] = {}
        with contextlib.suppress(OSError):
            self._before = _cpu_times()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.names = _busiest(self._before, _cpu_times())


class Task:
    """A thread, and the seconds in which it used a CPU, and was ready to but had none, between `begin` and `end`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.used = self.queued = 0.0
        self._last = (0, 0)
        self._file = _open_for(self, PROC / name / "schedstat")
        self._began = self.times = self._read()

    def begin(self) -> None:
        self._began = self._read()

    def end(self) -> None:
        used, queued = self._read()
        self.used += (used - self._began[0]) / 1e9
        self.queued += (queued - self._began[1]) / 1e9

    def _read(self) -> tuple[int, int]:
        try:
            used, queued, _ = os.pread(self._file, LINE_NBYTES, 0).split()
        except OSError:  # the thread has ended
            return self._last
        self._last = int(used), int(queued)
        return self._last


def _open_for(owner: object, path: Path) -> int:
    """Open a file to read, and close it when `owner` goes: a loop that is left early tells nobody that it has ended."""
    file = os.open(path, os.O_RDONLY)
    weakref.finalize(owner, os.close, file)
    return file


def _cpu_times() -> dict[str, int]:
    """Return the nanoseconds of CPU time of each thread of this process and its descendants, by "pid/task/tid".

    An `OSError` means that this kernel does not tell.
    """
    times = {name: _nanoseconds(name) for name in _threads(os.getpid())}
    return {name: used for name, used in times.items() if used is not None}


def _busiest(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Return the names of the threads that were busy between two calls of `_cpu_times`."""
    used = _growth(before, after)
    most = max(used.values(), default=0.0)
    return [name for name, seconds in used.items() if seconds and seconds >= BUSY_SHARE * most]


def _growth(before: dict[str, int], after: dict[str, int]) -> dict[str, float]:
    return {name: (used - before.get(name, 0)) / 1e9 for name, used in after.items()}


def _threads(pid: int) -> Iterator[str]:
    """Yield the names of the threads of a process and its descendants."""
    for task in (PROC / str(pid) / "task").iterdir():
        name = f"{pid}/task/{task.name}"
        yield name
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for child in (PROC / name / "children").read_text().split():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    yield from _threads(int(child))


def _nanoseconds(name: str) -> int | None:
    try:
        return int((PROC / name / "schedstat").read_bytes().split()[0])
    except ProcessLookupError:
        return None
    except FileNotFoundError:
        if (PROC / name).exists():
            raise  # this kernel has no such file
        return None


def _seconds_of_pressure(file: int) -> float:
    found = FULL_MICROSECONDS.search(os.pread(file, LINE_NBYTES, 0))
    return int(found[1]) / 1e6 if found else 0.0
