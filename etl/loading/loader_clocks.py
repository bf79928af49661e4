"""Clocks around a loader: seconds of each stage, and spans in which each thread loads a batch."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etl.loading.batch_plan import NONE_FINISHED, BatchSpec, Finished, Loader
from etl.sources.record import RecordError
from etl.stages.cursor import COLLATING, IDLE, READING, Cursor, ThreadCursor

EMPTY = np.empty((0, 0))


class StageClock:
    """A `Cursor` that measures how long each stage takes, for one thread.

    When the loader sets the record or the stage, the clock begins to count the time for the new stage. Collating counts
    for the last stage.

    Attributes
    ----------
    records : int
        Records that were begun.
    until : float
        Time of `time.perf_counter` at which the loader stops, after the record that it is loading. One record is always
        loaded, since no rate follows from none.
    """

    def __init__(self, stages: tuple[str, ...]) -> None:
        self._names = stages
        self._seconds = [0.0] * len(stages)
        self._place: int | None = None
        self._since = 0.0
        self._record, self._stage = IDLE, READING
        self.records = 0
        self.until = math.inf

    def seconds_per_record(self) -> list[tuple[str, float]]:
        """Return the name of each stage and its mean seconds per record, reading first."""
        return [(name, seconds / self.records) for name, seconds in zip(self._names, self._seconds, strict=True)]

    def stop(self) -> None:
        """Let the loader stop after the record that it is loading; called in another thread."""
        self.until = -math.inf

    def pause(self) -> None:
        """Count no time until the next record begins."""
        self._note(None)

    @property
    def record(self) -> int:
        """The record that is being loaded, for errors."""
        return self._record

    @record.setter
    def record(self, record: int) -> None:
        self._record = record
        if record != IDLE:
            self.records += 1
            self._note(0)

    @property
    def stage(self) -> int:
        """The stage that the record is at, for errors."""
        return self._stage

    @stage.setter
    def stage(self, stage: int) -> None:
        self._stage = stage
        if stage != COLLATING:
            self._note(stage - READING)

    @property
    def cancelled(self) -> bool:
        """True when the time is up and a record was begun."""
        return self.records > 0 and time.perf_counter() >= self.until

    @cancelled.setter
    def cancelled(self, cancelled: bool) -> None:
        if cancelled:
            self.stop()

    def _note(self, place: int | None) -> None:
        now = time.perf_counter()
        if self._place is not None:
            self._seconds[self._place] += now - self._since
        self._place, self._since = place, now


class RecordRun:
    """A loop that loads batches of records in random order, as the threads of an iterator do, for as long as needed."""

    def __init__(self, loader: Loader, records: int, batch_size: int, seed: int) -> None:
        self._loader = loader
        self._order = np.random.default_rng(seed).permutation(records)
        self._batch = min(batch_size, records)
        self._next = 0

    def load_for(self, seconds: float, clock: StageClock) -> None:
        """Load for `seconds` with `clock` as the cursor."""
        clock.until = time.perf_counter() + seconds
        self.load(clock)

    def load(self, clock: StageClock, max_records: float = math.inf) -> None:
        """Load until `clock.until`, which another thread may change, or until `max_records` records are loaded."""
        arrays: dict[str, np.ndarray] = {}
        while True:
            # There is no lock, so two threads may load the same records, which takes as long as different ones.
            first, self._next = self._next, self._next + self._batch
            indices = np.take(self._order, range(first, first + self._batch), mode="wrap")
            fields = self._loader.plan(indices, 0, ThreadCursor()).fields
            if any(arrays.get(name, EMPTY).shape[1:] != shape for name, (shape, _) in fields.items()):
                arrays = {name: np.empty((self._batch, *shape), dtype) for name, (shape, dtype) in fields.items()}
            self._loader.load(indices, 0, arrays, clock)
            clock.pause()
            if time.perf_counter() >= clock.until or clock.records >= max_records:
                return


# Two chunks of a batch that the same thread loads with a shorter gap between them are drawn as one span.
GAP_SECONDS = 2e-4


class Span(NamedTuple):
    """A span in which a thread loaded records of a batch, as times of `time.perf_counter`. Batches count from 0."""

    thread: int
    start: float
    end: float
    batch: int


class WatchedLoader:
    """A `Loader` that passes all calls to another loader, and keeps a `Span` for each chunk that is loaded."""

    def __init__(self, loader: Loader) -> None:
        self.granularity = loader.granularity
        self._loader = loader
        self._batch_of: dict[int, int] = {}
        self._batches = 0
        self.spans: list[Span] = []

    def plan(self, indices: NDArray[np.int64], epoch: int, cursor: Cursor) -> BatchSpec:
        started = time.perf_counter()
        spec = self._loader.plan(indices, epoch, cursor)
        self._batch_of.update(dict.fromkeys(indices.tolist(), self._batches))
        self._note(started, self._batches)
        self._batches += 1
        return spec

    def load(
        self,
        indices: NDArray[np.int64],
        epoch: int,
        out: Mapping[str, np.ndarray],
        cursor: Cursor,
        finished: Mapping[int, Finished] = NONE_FINISHED,
    ) -> Mapping[int, RecordError]:
        started = time.perf_counter()
        try:
            return self._loader.load(indices, epoch, out, cursor, finished)
        finally:
            self._note(started, self._batch_of[int(indices[0])])

    def name_error(self, cursor: Cursor, cause: BaseException) -> RecordError:
        return self._loader.name_error(cursor, cause)

    def merged(self) -> list[Span]:
        """Return the spans, ordered by start. Spans of the same thread and batch are merged if the gap is short."""
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
