"""Times of loading and training: of one training, and of variants compared in turns. Imports torch."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from etl.doctor.check import Trial
from etl.doctor.setup import Setup
from etl.measuring.arrays import copy_of, touch
from etl.measuring.statistics import CONFIDENCE, signed_rank_interval
from etl.measuring.structure import record_count
from etl.watching.session import Session

WARM_UP_BATCHES = 3
# 0 is the training without the remedy, and 1 is with it. They take turns in an order in which a steady drift cancels.
TURNS = (0, 1, 1, 0) * 3
# A turn takes at least this many seconds, and has at least this many batches.
TURN_SECONDS, MIN_TURN_BATCHES = 0.5, 3
# Time for each training of which a step on a batch in memory is timed.
TRIAL_SECONDS = 0.5


@dataclass
class StepTimes:
    """Measurements of each batch, in order."""

    # Seconds of waiting for the batch, and of the training step.
    etl: list[float] = field(default_factory=list)
    compute: list[float] = field(default_factory=list)
    # Time of `time.perf_counter` at which the training step ended.
    ended: list[float] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    # Minor page faults: pages that the system gave this process for the first time.
    faults: list[int] = field(default_factory=list)

    @property
    def typical(self) -> float:
        """Median seconds of a batch."""
        return statistics.median(map(sum, zip(self.etl, self.compute, strict=True)))

    def saved(self, without: float, with_remedy: float) -> float:
        """Return the seconds that a remedy saves per batch: its share of a training step, of the steps observed here.

        `without` and `with_remedy` are seconds of a step, measured in turns, perhaps when more was going on.
        """
        return (1 - with_remedy / without) * statistics.median(self.compute)

    @property
    def seconds_per_record(self) -> float:
        """Mean seconds of a record, over all batches."""
        return (sum(self.etl) + sum(self.compute)) / sum(self.records)


def time_steps(
    setup: Setup,
    count: int,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    seconds: float = 0.0,
    session: Session | None = None,
) -> tuple[StepTimes, Any]:
    """Train on a few batches to warm up, then measure at least `count` batches for at least `seconds`.

    Errors of training are raised unchanged.

    Parameters
    ----------
    around : callable
        Returns a context manager; the batches are measured inside it, after the warm-up.
    session : Session, optional
        Times the loop over `setup.batches`, too, and looks at what loads.

    Returns
    -------
    The times, and a copy of the first of the largest batches: the last one of an epoch may be smaller.
    """
    times = StepTimes()
    with ExitStack() as in_force:
        setup.enter(in_force)
        step = setup.make_step()
        batches = setup.endless()
        in_force.callback(batches.close)  # type: ignore[attr-defined]
        largest: Any = None
        with nullcontext() if session is None else session.reports.of(setup.batches, session.times_of(setup.batches)):
            for _ in range(WARM_UP_BATCHES):
                batch = next(batches)
                step(batch)
                largest = _larger(largest, batch)

        loaded = map(_touched, batches)
        loop = loaded if session is None else session.epoch(setup.batches, lambda _: loaded)
        with around():
            until = time.perf_counter() + seconds
            while len(times.etl) < count or time.perf_counter() < until:
                faults = _minor_faults()
                asked = time.perf_counter()
                batch = next(loop)
                began = time.perf_counter()
                step(batch)
                ended = time.perf_counter()
                times.etl.append(began - asked)
                times.compute.append(ended - began)
                times.ended.append(ended)
                times.records.append(record_count(batch))
                times.faults.append(_minor_faults() - faults)
                largest = _larger(largest, batch)
    return times, largest


def _touched(batch: Any) -> Any:
    """Return `batch` once it is in memory, as under the clock: one that is only mapped is not loaded yet."""
    touch(batch)
    return batch


def _larger(kept: Any, batch: Any) -> Any:
    """Return `kept`, or if `batch` has more records, a copy of that: an iterator may reuse its memory."""
    return kept if kept is not None and record_count(kept) >= record_count(batch) else copy_of(batch)


def time_compute(setups: Sequence[Setup], batches: Sequence[Any]) -> list[float]:
    """Return the median seconds of a training step on a batch in memory, for each training.

    The trainings take turns, and each takes at least three steps.
    """
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
            until = time.perf_counter() + TRIAL_SECONDS * len(setups)
    return [statistics.median(found) for found in times]


def try_remedy(setup: Setup, changed: Setup, records: int) -> Trial:
    """Train in alternating turns without and with a remedy. Errors of training are raised unchanged.

    The trial has the seconds of a batch of so many records.
    """

    def measure(turn: int) -> float:
        times, _ = time_steps((setup, changed)[turn], MIN_TURN_BATCHES, seconds=TURN_SECONDS)
        return times.seconds_per_record * records

    return take_turns(measure)


def take_turns(measure: Callable[[int], float], unit: str = "a batch") -> Trial:
    """Measure without and with a remedy, in alternating turns.

    `measure` returns the seconds of a unit: called with 0 without the remedy, with 1 for it.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in TURNS:
        seconds[turn].append(measure(turn))
    log_ratios = [math.log(after / before) for before, after in zip(*seconds, strict=True)]
    low, ratio, high = map(math.exp, signed_rank_interval(log_ratios, CONFIDENCE))
    middle = statistics.median_high(seconds[0])
    return Trial(middle, middle * ratio, ratio, low, high, unit)


def _minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
