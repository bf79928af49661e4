"""The clock: one epoch of an iterable, with the time of every wait and every step.

A training loop on a device does not wait for it after every batch: while the device computes on one batch, the loop
asks for the next. So the clock has two hands. The loop waits for a batch from asking for it until it is readable at
memory speed; the device stalls only as far as it has nothing to do in that time. On a CPU, where the loop itself
computes, both are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .arrays import touch
from .values import JsonValues

# Is called with each batch.
Step = Callable[[Any], object]
# Seconds of `time.perf_counter` at which a step began and ended.
Span = tuple[float, float]


@runtime_checkable
class DeviceStep(Protocol):
    """A step that goes on after the call has returned, at most one at a time."""

    def __call__(self, batch: Any) -> object:
        """Wait until the step before is done, start this one, and return as soon as `batch` may be let go."""

    def finish(self) -> list[Span]:
        """Wait until the last step is done, and return the spans of all steps since `finish` was last called."""


@dataclass(frozen=True)
class Split(JsonValues):
    """Seconds of the first batch, from asking for the iterator on, and of all that came after it."""

    first: float
    rest: float

    @property
    def total(self) -> float:
        """Seconds of all batches."""
        return self.first + self.rest

    def scaled(self, measured_batches: float, batches: float) -> float:
        """Return the seconds of an epoch of `batches` batches, of which `measured_batches` were measured.

        What comes after the first batch grows with their number; the first has the start-up in it, once.
        """
        if measured_batches <= 1:
            return self.total * batches
        return self.first + self.rest * (batches - 1) / (measured_batches - 1)


@dataclass(frozen=True)
class EpochFigures(JsonValues):
    """What one epoch took; seconds.

    Attributes
    ----------
    batches, samples : int
        How many there were. Samples are records.
    wall : Split
        The whole epoch, until the last step is done.
    compute : Split
        Steps, while the device was at work on them.
    stall : Split
        Time in which nothing was computed since the next batch was not there yet, the iterator's start and end
        included.
    host_wait : Split
        Time in which the loop waited for batches, beside compute or not.
    """

    batches: int
    samples: int
    wall: Split
    compute: Split
    stall: Split
    host_wait: Split


@dataclass(frozen=True)
class EpochTimes:
    """When things happened in one epoch, in seconds of `time.perf_counter`.

    Attributes
    ----------
    started, ended : float
        When the iterator was asked for, and when it had said that it was at its end and the last step was done.
    asked, loaded : float64 arrays of shape (batches,)
        For each batch when it was asked for, and when it could be read at memory speed.
    began, done : float64 arrays of shape (batches,)
        For each batch when its step began, and when it was done.
    last_asked, exhausted : float
        When the batch was asked for that did not come, and when that was known.
    samples : int
        Records in all batches.
    """

    started: float
    asked: np.ndarray
    loaded: np.ndarray
    began: np.ndarray
    done: np.ndarray
    last_asked: float
    exhausted: float
    ended: float
    samples: int

    @property
    def batches(self) -> int:
        """Batches in the epoch."""
        return len(self.done)

    @property
    def wall(self) -> Split:
        """The whole epoch."""
        return Split(float(self.done[0] - self.started), float(self.ended - self.done[0]))

    @property
    def host_wait(self) -> Split:
        """Waits of the loop for a batch, until every page had been read, the iterator's start and end included."""
        waits = self.loaded - self.asked
        return Split(float(waits[0]), float(waits[1:].sum() + self.exhausted - self.last_asked))

    @property
    def stalled(self) -> np.ndarray:
        """For each batch from when on nothing was computed, until it was loaded: float64 of shape (batches,)."""
        free = np.concatenate([[self.started], self.done[:-1]])
        stalled: np.ndarray = np.minimum(self.loaded, np.maximum(self.asked, free))
        return stalled

    @property
    def stall(self) -> Split:
        """Of these waits what the step before did not cover."""
        waits = self.loaded - self.stalled
        at_end = max(0.0, self.exhausted - max(self.last_asked, float(self.done[-1])))
        return Split(float(waits[0]), float(waits[1:].sum()) + at_end)

    @property
    def compute(self) -> Split:
        """Steps."""
        steps = self.done - self.began
        return Split(float(steps[0]), float(steps[1:].sum()))

    @property
    def figures(self) -> EpochFigures:
        """The sums of all that."""
        return EpochFigures(self.batches, self.samples, self.wall, self.compute, self.stall, self.host_wait)


def run_epoch(iterable: Iterable[Any], step: Step | None) -> EpochTimes:
    """Run one epoch of `iterable` through `step`, and time it.

    Each batch is touched, one byte of every page, inside the time of loading: a batch that is only mapped has not been
    loaded.

    Parameters
    ----------
    iterable : iterable of batches
        One epoch an iteration. A batch has `len()` and `arrays()`.
    step : callable, DeviceStep or None
        Is called with each batch. If it is not a `DeviceStep`, it is done when it returns. None loads without
        computing.

    Raises
    ------
    ValueError
        If there was no batch.
    """
    now = time.perf_counter
    asked: list[float] = []
    loaded: list[float] = []
    spans: list[Span] = []
    samples = 0
    finish = step.finish if isinstance(step, DeviceStep) else None
    if finish is not None:
        finish()
    started = request = now()
    batches = iter(iterable)
    while True:
        batch = next(batches, None)
        if batch is None:
            break
        touch(batch)
        arrived = now()
        if step is not None:
            step(batch)
        if finish is None:
            spans.append((arrived, now()))
        samples += len(batch)
        asked.append(request)
        loaded.append(arrived)
        # Let go before the next is asked for, as a training script does: its memory may serve again.
        del batch
        request = now()
    exhausted = ended = now()
    if finish is not None:
        spans = finish()
        ended = now()
    if not loaded:
        raise ValueError("the iterator gave no batch")
    began, done = (np.array(each) for each in zip(*spans, strict=True))
    return EpochTimes(started, np.array(asked), np.array(loaded), began, done, request, exhausted, ended, samples)


def seconds_of_step(step: Step, batches: Sequence[Any], at_least: float, fewest: int = 1) -> float:
    """Return the seconds of a step on a batch that is in memory, with nothing else at work.

    It is the mean over whole passes through `batches`: at least `fewest` steps, and as many as begin within `at_least`
    seconds.
    """
    finish = step.finish if isinstance(step, DeviceStep) else None
    if finish is not None:
        finish()  # one may be in flight
    steps, started = 0, time.perf_counter()
    while steps < fewest or time.perf_counter() - started < at_least:
        for batch in batches:
            step(batch)
        steps += len(batches)
    if finish is not None:
        finish()
    return (time.perf_counter() - started) / steps
