"""Clocks around a loader: seconds of each stage, and spans of each thread and batch."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, MutableSequence
from typing import Any, NamedTuple

import numpy as np

from etl.comparison.workload import Workload
from etl.loading.batch import Batch
from etl.loading.batch_plan import Layout, Loader, Where, nowhere
from etl.sources.record import RecordError
from etl.stages.pipeline import READING

EMPTY = np.empty((0, 0))


class StageClock(MutableSequence[int]):
    """A `Where` that adds up the seconds of each stage while a loader writes its record and stage to it.

    The loader stops after the current record when the time is past `until`, a time of `time.perf_counter`.
    """

    def __init__(self, stages: tuple[str, ...]) -> None:
        self._names = stages
        self._seconds = [0.0] * len(stages)
        self._place: int | None = None
        self._since = 0.0
        self.records = 0
        self.until = math.inf

    def seconds_per_record(self) -> list[tuple[str, float]]:
        """Return (stage, seconds) pairs, reading first. The last stage includes storing the record in its batch."""
        return [(name, seconds / self.records) for name, seconds in zip(self._names, self._seconds, strict=True)]

    def pause(self) -> None:
        """Stop the clock until the next record."""
        self._note(None)

    def __setitem__(self, index: Any, value: Any) -> None:
        if index == 0:
            self.records += 1
            self._note(0)
        elif index == 1:
            self._note(value - READING)

    def __getitem__(self, index: Any) -> Any:
        return int(index == 2 and time.perf_counter() >= self.until)

    def __len__(self) -> int:
        return 3

    def __delitem__(self, index: Any) -> None:
        raise TypeError("it has three places")

    def insert(self, index: int, value: int) -> None:  # noqa: ARG002
        raise TypeError("it has three places")

    def _note(self, place: int | None) -> None:
        now = time.perf_counter()
        if self._place is not None:
            self._seconds[self._place] += now - self._since
        self._place, self._since = place, now


class RecordRun:
    """A loop that loads records in its own order, batch after batch, as the threads of an iterator do."""

    def __init__(self, workload: Workload, loader: Loader) -> None:
        self.stages = workload.stages
        self._loader = loader
        self._order = np.random.default_rng(workload.settings.seed).permutation(len(workload.records))
        self._batch = min(workload.settings.batch_size, len(workload.records))
        self._next = 0

    def load_for(self, seconds: float, clock: StageClock) -> None:
        """Load for `seconds`."""
        clock.until = time.perf_counter() + seconds
        self.load(clock)

    def load(self, clock: StageClock, most: float = math.inf) -> None:
        """Load until `clock.until`, which another thread may change, or until `most` records are loaded."""
        arrays: dict[str, np.ndarray] = {}
        while time.perf_counter() < clock.until and clock.records < most:
            # Without a lock two threads may load the same records, which takes equally long.
            first, self._next = self._next, self._next + self._batch
            numbers = np.take(self._order, range(first, first + self._batch), mode="wrap")
            layout = self._loader.lay_out(numbers, 0, nowhere())
            if any(arrays.get(name, EMPTY).shape[1:] != shape for name, (shape, _) in layout.items()):
                arrays = {name: np.empty((self._batch, *shape), dtype) for name, (shape, dtype) in layout.items()}
            self._loader.load(numbers, 0, arrays, clock)
            clock.pause()


# Maximum time in which a thread asks for the next part of the same batch.
GAP_SECONDS = 2e-4


class Span(NamedTuple):
    """A span in which a thread loaded records of a batch, in times of `time.perf_counter`. Batches count from 0."""

    thread: int
    start: float
    end: float
    batch: int


class WatchedLoader:
    """A `Loader` that delegates to `loader` and keeps a `Span` for each part of a batch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batch_of: dict[int, int] = {}
        self._batches = 0
        self.spans: list[Span] = []

    def lay_out(self, numbers: np.ndarray, epoch: int, where: Where) -> Layout:
        """Delegate to `loader`, and count a new batch.

        Parameters
        ----------
        numbers : int64 array of shape (records,)
            Records of the batch.
        epoch : int
            The epoch.
        where : Where
            Position of the loader.
        """
        started = time.perf_counter()
        layout = self._loader.lay_out(numbers, epoch, where)
        self._batch_of.update(dict.fromkeys(numbers.tolist(), self._batches))
        self._note(started, self._batches)
        self._batches += 1
        return layout

    def task_records(self, records: int, workers: int) -> int:
        """Delegate to `loader`."""
        return self._loader.task_records(records, workers)

    def load(
        self, numbers: np.ndarray, epoch: int, arrays: Mapping[str, np.ndarray], where: Where
    ) -> Mapping[int, RecordError]:
        """Delegate to `loader`, and keep a span.

        Parameters
        ----------
        numbers : int64 array of shape (rows,)
            Records to load.
        epoch : int
            The epoch.
        arrays : arrays of shape (rows, ...)
            One array for each field.
        where : Where
            Position of the loader.
        """
        started = time.perf_counter()
        try:
            return self._loader.load(numbers, epoch, arrays, where)
        finally:
            self._note(started, self._batch_of[int(numbers[0])])

    def to_batch(self, arrays: Mapping[str, np.ndarray]) -> Batch:
        """Delegate to `loader`."""
        return self._loader.to_batch(arrays)

    def error_at(self, where: Where, cause: BaseException) -> RecordError:
        """Delegate to `loader`."""
        return self._loader.error_at(where, cause)

    def reset(self) -> None:
        """Forget all spans: the next batch is the first."""
        self._batch_of.clear()
        self._batches = 0
        self.spans.clear()

    def merged(self) -> list[Span]:
        """Return the spans by start, with consecutive spans of the same thread and batch merged."""
        merged: list[Span] = []
        last: dict[int, int] = {}
        for span in sorted(self.spans, key=lambda each: each.start):
            place = last.get(span.thread, -1)
            if place >= 0 and merged[place].batch == span.batch and span.start - merged[place].end < GAP_SECONDS:
                merged[place] = merged[place]._replace(end=span.end)
            else:
                last[span.thread] = len(merged)
                merged.append(span)
        return merged

    def _note(self, started: float, batch: int) -> None:
        self.spans.append(Span(threading.get_ident(), started, time.perf_counter(), batch))
