"""The clock: one epoch of an iterable, with the time of every wait and every step.

A training loop does not wait for its device after every batch: while the device computes on one batch, the loop
requests the next. So two durations are measured. The host wait lasts from the request for a batch until the batch can
be read at memory speed. The stall is the part of that wait in which the device is idle. If the loop itself computes, on
a CPU, the two are equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .arrays import touch
from .structure import record_count
from .values import JsonValues
from .waiting import WaitWatch

_END = object()
# Called with each batch.
Step = Callable[[Any], object]
# Seconds of `time.perf_counter` at which a step began and ended.
Span = tuple[float, float]


@runtime_checkable
class DeviceStep(Protocol):
    """A step that continues after its call has returned, with at most one in flight."""

    def __call__(self, batch: Any) -> object:
        """Wait until the previous step is done, start this one, and return as soon as `batch` may be released."""

    def finish(self) -> list[Span]:
        """Wait until the last step is done, and return the spans of all steps since `finish` was last called."""


@dataclass(frozen=True)
class Split(JsonValues):
    """Seconds of an epoch, split after its start-up and before its end.

    Attributes
    ----------
    first : float
        From the call of `iter` until the last batch of the start-up is done.
    rest : float
        From then until the last batch is done.
    end : float
        From then until the iterator has ended, as when its workers end.
    """

    first: float
    rest: float
    end: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of all of it."""
        return self.first + self.rest + self.end

    def scaled(self, measured_batches: float, batches: float, start_up: int = 1) -> float:
        """Return the seconds of an epoch of `batches` batches, of which `measured_batches` were measured.

        The time after the start-up is proportional to the number of batches; the start-up and the end count once. If
        there is nothing after the start-up in either, all of the time is proportional.
        """
        if measured_batches <= start_up or batches <= start_up:
            return self.total * batches / measured_batches
        return self.first + self.rest * (batches - start_up) / (measured_batches - start_up) + self.end


@dataclass(frozen=True)
class EpochMetrics(JsonValues):
    """The times of one epoch, in seconds.

    Attributes
    ----------
    batches, samples : int
        Batches and records of the epoch.
    wall : Split
        The whole epoch, until the last step is done.
    compute : Split
        Time in which the device worked on steps.
    stall : Split
        Time in which nothing was computed because the next batch was not ready, including the start and the end of the
        iterator.
    host_wait : Split
        Time in which the loop waited for batches, whether or not the device computed meanwhile.
    start_up : int
        Batches of the start-up, after which times are split: at most all but one.
    """

    batches: int
    samples: int
    wall: Split
    compute: Split
    stall: Split
    host_wait: Split
    start_up: int = 1

    @classmethod
    def mean(cls, epochs: Sequence[EpochMetrics]) -> EpochMetrics:
        """Return the means of the times of epochs with equally many batches and records."""

        def mean(splits: Sequence[Split]) -> Split:
            return Split(*(fmean(getattr(each, name) for each in splits) for name in ("first", "rest", "end")))

        return replace(
            epochs[0],
            wall=mean([each.wall for each in epochs]),
            compute=mean([each.compute for each in epochs]),
            stall=mean([each.stall for each in epochs]),
            host_wait=mean([each.host_wait for each in epochs]),
        )


@dataclass(frozen=True)
class EpochTimes:
    """The moments of one epoch, in seconds of `time.perf_counter`.

    Attributes
    ----------
    started, ended : float
        When `iter` was called, and when the iterator was exhausted and the last step was done.
    asked, loaded : float64 arrays of shape (batches,)
        When each batch was requested, and when it could be read at memory speed.
    began, done : float64 arrays of shape (batches,)
        When the step of each batch began, and when it was done.
    last_asked, exhausted : float
        When the last request, which found the iterator exhausted, was made, and when it returned.
    samples : int
        Records in all batches.
    start_up : int
        Batches of the start-up, after which times are split: at least one, and at most all but one.
    """

    started: float
    asked: NDArray[np.float64]
    loaded: NDArray[np.float64]
    began: NDArray[np.float64]
    done: NDArray[np.float64]
    last_asked: float
    exhausted: float
    ended: float
    samples: int
    start_up: int = 1

    @property
    def batches(self) -> int:
        """Batches in the epoch."""
        return len(self.done)

    @property
    def wall(self) -> Split:
        """The whole epoch."""
        started = float(self.done[self.start_up - 1])
        return Split(started - self.started, self.ended - started - self._at_end, self._at_end)

    @property
    def host_wait(self) -> Split:
        """Waits of the loop until every page of a batch was read, including the start and the end of the iterator."""
        waits = self.loaded - self.asked
        return self._split(waits, self.exhausted - self.last_asked)

    @property
    def stalled(self) -> NDArray[np.float64]:
        """When the stall before each batch began: float64 of shape (batches,), equal to `loaded` if there was none."""
        free = np.concatenate([[self.started], self.done[:-1]])
        stalled: NDArray[np.float64] = np.minimum(self.loaded, np.maximum(self.asked, free))
        return stalled

    @property
    def stalls(self) -> NDArray[np.float64]:
        """Seconds of the stall before each batch: float64 of shape (batches,)."""
        stalls: NDArray[np.float64] = self.loaded - self.stalled
        return stalls

    @property
    def stall(self) -> Split:
        """The part of `host_wait` in which no step was running."""
        return self._split(self.stalls, self._at_end)

    @property
    def compute(self) -> Split:
        """Durations of the steps."""
        return self._split(self.done - self.began, 0.0)

    @property
    def metrics(self) -> EpochMetrics:
        """The durations that follow from these moments."""
        return EpochMetrics(
            self.batches, self.samples, self.wall, self.compute, self.stall, self.host_wait, self.start_up
        )

    @property
    def _at_end(self) -> float:
        """Seconds in which nothing was computed while the iterator ended."""
        return max(0.0, self.exhausted - max(self.last_asked, float(self.done[-1])))

    def _split(self, seconds: NDArray[np.float64], at_end: float) -> Split:
        return Split(float(seconds[: self.start_up].sum()), float(seconds[self.start_up :].sum()), at_end)


def run_epoch(
    iterable: Iterable[Any], step: Step | None, waits: WaitWatch | None = None, start_up: int = 1
) -> EpochTimes:
    """Run one epoch of `iterable` through `step`, and time it.

    One byte of every page of a batch is read, which counts as loading: a batch that is only mapped is not loaded yet.
    As in `for batch in iterable`, a batch lives until the next one is there, whose wait includes to release it.

    Parameters
    ----------
    iterable : iterable of batches
        Each iteration is an epoch. Batches may have any structure, see `etl.measuring.structure`.
    step : callable, DeviceStep or None
        Called with each batch. Unless it is a `DeviceStep`, it is done when it returns. None loads without computing.
    waits : WaitWatch, optional
        Measures what loading does during the waits, or during so many of them that it takes less than
        `waiting.MAX_COST_SHARE` of the epoch. That time is part of the waits.

    Raises
    ------
    ValueError
        If the iterable has no batches.
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
    if waits is not None:
        waits.begin()
    batches = iter(iterable)
    batch: Any = None
    while True:
        batch = next(batches, _END)  # as late as here is the batch before released
        if batch is _END:
            break
        touch(batch)
        if waits is not None:
            waits.end()
        arrived = now()
        if step is not None:
            step(batch)
        if finish is None:
            spans.append((arrived, now()))
        samples += record_count(batch)
        asked.append(request)
        loaded.append(arrived)
        request = now()
        if waits is not None:
            waits.begin()
    if waits is not None:
        waits.end()
    exhausted = ended = now()
    if finish is not None:
        spans = finish()
        ended = now()
    if not loaded:
        raise ValueError("the iterator gave no batch")
    began, done = (np.array(each) for each in zip(*spans, strict=True))
    moments = (np.array(asked), np.array(loaded), began, done)
    in_start_up = max(1, min(start_up, len(loaded) - 1))
    return EpochTimes(started, *moments, request, exhausted, ended, samples, in_start_up)


def seconds_of_step(step: Step, batches: Sequence[Any], seconds: float, min_steps: int = 1) -> float:
    """Return the mean seconds of a step on batches in memory, while nothing else runs."""
    finish = step.finish if isinstance(step, DeviceStep) else None
    if finish is not None:
        finish()  # one may be in flight
    steps, started = 0, time.perf_counter()
    while steps < min_steps or time.perf_counter() - started < seconds:
        for batch in batches:
            step(batch)
        steps += len(batches)
    if finish is not None:
        finish()
    return (time.perf_counter() - started) / steps
