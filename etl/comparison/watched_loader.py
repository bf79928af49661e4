"""A loader that says when which thread was at which batch, record and stage."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from etl.loading.batch import Batch
from etl.loading.batch_plan import Layout, Loader, Where
from etl.sources.record import RecordError

# Between two parts of a batch a thread asks for the next one.
GAP_SECONDS = 2e-4


class Span(NamedTuple):
    """A thread loaded records of a batch, the first batch being 0, between two times of `time.perf_counter`."""

    thread: int
    start: float
    end: float
    batch: int


class WatchedLoader:
    """Does what `loader` does, and keeps a `Span` for each part of a batch that it loaded. Implements `Loader`."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._batch_of: dict[int, int] = {}
        self._batches = 0
        self.spans: list[Span] = []

    def lay_out(self, numbers: np.ndarray, epoch: int, where: Where) -> Layout:
        """As `loader` does; a batch is counted when it is laid out."""
        started = time.perf_counter()
        layout = self._loader.lay_out(numbers, epoch, where)
        self._batch_of.update(dict.fromkeys(numbers.tolist(), self._batches))
        self._note(started, self._batches)
        self._batches += 1
        return layout

    def task_records(self, records: int, workers: int) -> int:
        """As `loader` says."""
        return self._loader.task_records(records, workers)

    def load(
        self, numbers: np.ndarray, epoch: int, arrays: Mapping[str, np.ndarray], where: Where
    ) -> Mapping[int, RecordError]:
        """As `loader` does."""
        started = time.perf_counter()
        try:
            return self._loader.load(numbers, epoch, arrays, where)
        finally:
            self._note(started, self._batch_of[int(numbers[0])])

    def to_batch(self, arrays: Mapping[str, np.ndarray]) -> Batch:
        """As `loader` does."""
        return self._loader.to_batch(arrays)

    def error_at(self, where: Where, cause: BaseException) -> RecordError:
        """As `loader` does."""
        return self._loader.error_at(where, cause)

    def begin_anew(self) -> None:
        """Forget what was loaded: the next batch is the first."""
        self._batch_of.clear()
        self._batches = 0
        self.spans.clear()

    def merged(self) -> list[Span]:
        """The spans in the order of their starts, those of a thread and batch that follow on each other as one."""
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
