"""A loader that says when which thread was at which batch, record and stage."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from etl.loading.batch_plan import NONE_FINISHED, BatchSpec, Finished, Loader
from etl.sources.record import RecordError
from etl.stages.cursor import Cursor

# Between two parts of a batch a thread asks for the next one.
GAP_SECONDS = 2e-4


class Span(NamedTuple):
    """A thread loaded records of a batch, the first batch being 0, between two times of `time.perf_counter`."""

    thread: int
    start: float
    end: float
    batch: int


class WatchedLoader:
    """A `Loader` that does what the wrapped one does and keeps a `Span` for each chunk that it loads."""

    def __init__(self, loader: Loader) -> None:
        self.granularity = loader.granularity
        self._loader = loader
        self._batch_of: dict[int, int] = {}
        self._batches = 0
        self.spans: list[Span] = []

    def plan(self, indices: np.ndarray, epoch: int, cursor: Cursor) -> BatchSpec:
        """Plan a batch and count it."""
        started = time.perf_counter()
        spec = self._loader.plan(indices, epoch, cursor)
        self._batch_of.update(dict.fromkeys(indices.tolist(), self._batches))
        self._note(started, self._batches)
        self._batches += 1
        return spec

    def load(
        self,
        indices: np.ndarray,
        epoch: int,
        out: Mapping[str, np.ndarray],
        cursor: Cursor,
        finished: Mapping[int, Finished] = NONE_FINISHED,
    ) -> Mapping[int, RecordError]:
        """Load a chunk and note when; see `Loader`."""
        started = time.perf_counter()
        try:
            return self._loader.load(indices, epoch, out, cursor, finished)
        finally:
            self._note(started, self._batch_of[int(indices[0])])

    def name_error(self, cursor: Cursor, cause: BaseException) -> RecordError:
        """Return an error for `cause` that names the record and stage at `cursor`."""
        return self._loader.name_error(cursor, cause)

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
