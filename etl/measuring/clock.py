"""The clock: one epoch of an iterable, with the time of every wait and every step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import touch

Step = Callable[[Any], object]


@dataclass(frozen=True)
class Split:
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
class EpochTimes:
    """When things happened in one epoch, in seconds of `time.perf_counter`.

    Attributes
    ----------
    started, ended : float
        When the iterator was asked for, and when it had said that it was at its end.
    asked, loaded, done : float64 arrays of shape (batches,)
        For each batch when it was asked for, when it could be read at memory speed, and when its step was done.
    last_asked : float
        When the batch was asked for that did not come.
    samples : int
        Records in all batches.
    """

    started: float
    asked: np.ndarray
    loaded: np.ndarray
    done: np.ndarray
    ended: float
    last_asked: float
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
    def stall(self) -> Split:
        """Waits for a batch until every page of it had been read, the iterator's start and end included."""
        waits = self.loaded - self.asked
        return Split(float(waits[0]), float(waits[1:].sum() + self.ended - self.last_asked))

    @property
    def compute(self) -> Split:
        """Steps."""
        steps = self.done - self.loaded
        return Split(float(steps[0]), float(steps[1:].sum()))


def run_epoch(iterable: Iterable[Any], step: Step | None) -> EpochTimes:
    """Run one epoch of `iterable` through `step`, and time it.

    Each batch is touched, one byte of every page, inside the time of loading: a batch that is only mapped has not been
    loaded.

    Parameters
    ----------
    iterable : iterable of batches
        One epoch an iteration. A batch has `len()` and `arrays()`.
    step : callable or None
        Is called with each batch and returns when it is done. None loads without computing.

    Raises
    ------
    ValueError
        If there was no batch.
    """
    now = time.perf_counter
    asked: list[float] = []
    loaded: list[float] = []
    done: list[float] = []
    samples = 0
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
        finished = now()
        samples += len(batch)
        asked.append(request)
        loaded.append(arrived)
        done.append(finished)
        # Let go before the next is asked for, as a training script does: its memory may serve again.
        del batch
        request = now()
    ended = now()
    if not done:
        raise ValueError("the iterator gave no batch")
    return EpochTimes(started, np.array(asked), np.array(loaded), np.array(done), ended, request, samples)
