"""The clock of a comparison: one epoch, with the time of every wait and every training step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

PAGE_NBYTES = 4096

Compute = Callable[[Any], object]


@dataclass(frozen=True)
class Split:
    """Seconds of the first batch, from asking for the iterator on, and of all that came after it."""

    first: float
    rest: float

    def of_epoch(self, measured_batches: float, batches: float) -> float:
        """Of an epoch of `batches` batches, where `measured_batches` were measured.

        What comes after the first batch grows with their number; the first has the start-up in it, once.
        """
        if measured_batches <= 1:
            return (self.first + self.rest) * batches
        return self.first + self.rest * (batches - 1) / (measured_batches - 1)


@dataclass(frozen=True)
class EpochTimes:
    """When an epoch `started` and `ended`, and for each batch when it was `asked` for, `loaded` and `done`: seconds of
    `time.perf_counter`, float64 arrays. The first was asked for when the epoch started.
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
        """How many there were."""
        return len(self.done)

    @property
    def wall(self) -> Split:
        """All of it."""
        return Split(float(self.done[0] - self.started), float(self.ended - self.done[0]))

    @property
    def stall(self) -> Split:
        """Waits for a batch until every page of it had been read, the iterator's start and end included."""
        waits = self.loaded - self.asked
        return Split(float(waits[0]), float(waits[1:].sum() + self.ended - self.last_asked))

    @property
    def compute(self) -> Split:
        """Training steps."""
        steps = self.done - self.loaded
        return Split(float(steps[0]), float(steps[1:].sum()))


def run_epoch(iterator: Any, compute: Compute | None) -> EpochTimes:
    """One epoch of `iterator` through `compute`, which must return only when it is done; None: loading alone.

    Each batch is touched, a byte of every page, while the wait for it is timed: one that is only mapped has not been
    loaded. Raises `ValueError` where there was no batch.
    """
    now = time.perf_counter
    asked: list[float] = []
    loaded: list[float] = []
    done: list[float] = []
    samples = 0
    started = request = now()
    batches = iter(iterator)
    while True:
        batch = next(batches, None)
        if batch is None:
            break
        touch(batch)
        arrived = now()
        if compute is not None:
            compute(batch)
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


def touch(batch: Any) -> int:
    """Read a byte of every page of every array of `batch`; their sum, so that nothing is optimised away."""
    total = 0
    for array in batch.arrays():
        content = as_bytes(array)
        # An array that begins within a page may end in one more than its length tells.
        total += int(content[::PAGE_NBYTES].sum(dtype=np.int64)) + int(content[-1:].sum(dtype=np.int64))
    return total


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of `array`, uint8 of shape `(nbytes,)`; a view where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
