"""Batches that are loaded and trained on, against the clock. Loads torch."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from etl.doctor.setup import Setup
from etl.loading.batch import Batch

WARM_UP_BATCHES = 3


@dataclass
class StepTimes:
    """Seconds of each batch: the wait until it was loaded, and the training step on it; when that step ended
    (`time.perf_counter`); its records; and its minor page faults, pages that the system gave this process for the first
    time.
    """

    etl: list[float] = field(default_factory=list)
    compute: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)

    @property
    def typical(self) -> float:
        """Seconds of a batch, the median."""
        return statistics.median(map(sum, zip(self.etl, self.compute, strict=True)))

    @property
    def seconds_per_record(self) -> float:
        """Of all batches together."""
        return (sum(self.etl) + sum(self.compute)) / sum(self.records)


def time_steps(
    setup: Setup, count: int, around: Callable[[], ExitStack] = ExitStack, seconds: float = 0.0
) -> tuple[StepTimes, Batch]:
    """The times of `count` batches, or of as many as take `seconds`, after a few to warm up; and the last one. What
    `around` returns is entered after the warm-up.
    """
    times = StepTimes()
    with ExitStack() as in_force:
        setup.enter(in_force)
        step = setup.make_step()
        batches = setup.endless()
        in_force.callback(batches.close)  # type: ignore[attr-defined]
        for _ in range(WARM_UP_BATCHES):
            step(next(batches))
        with around():
            until = time.perf_counter() + seconds
            while len(times.etl) < count or time.perf_counter() < until:
                faults = _minor_faults()
                asked = time.perf_counter()
                batch = next(batches)
                loaded = time.perf_counter()
                step(batch)
                ended = time.perf_counter()
                times.etl.append(loaded - asked)
                times.compute.append(ended - loaded)
                times.ended.append(ended)
                times.records.append(len(batch))
                times.faults.append(_minor_faults() - faults)
    return times, batch


def _minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def time_compute(setups: Sequence[Setup], batches: Sequence[Batch], seconds: float) -> list[float]:
    """Seconds of a training step in each of `setups` on its batch in memory, medians of at least three, in turns."""
    steps = [setup.make_step() for setup in setups]
    times: list[list[float]] = [[] for _ in setups]
    until: float | None = None
    while until is None or time.perf_counter() < until or len(times[0]) < 3:
        warm = until is None
        for setup, step, batch, found in zip(setups, steps, batches, times, strict=True):
            with ExitStack() as in_force:
                setup.enter(in_force)
                started = time.perf_counter()
                step(batch)
                if not warm:
                    found.append(time.perf_counter() - started)
        if warm:
            until = time.perf_counter() + seconds * len(setups)
    return [statistics.median(found) for found in times]
