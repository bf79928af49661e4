"""A clock for the stages of a pipeline, while records go through all of them as in an iterator's thread."""

from __future__ import annotations

import math
import time

import numpy as np

from etl.comparison.workload import Workload
from etl.loading.batch_plan import Loader
from etl.stages.cursor import COLLATING, IDLE, READING, ThreadCursor

EMPTY = np.empty((0, 0))


class StageClock:
    """A `Cursor` that measures how long each stage takes.

    The seconds between two changes of position are those of the stage that the first of them named. Collating counts to
    the last stage.

    Parameters
    ----------
    stages : tuple of str
        The names of the stages, reading first.

    Attributes
    ----------
    records : int
        Records that were begun.
    until : float
        The loader stops at this time of `time.perf_counter`, after the record that it is at.
    """

    def __init__(self, stages: tuple[str, ...]) -> None:
        self._names = stages
        self._seconds = [0.0] * len(stages)
        self._place: int | None = None
        self._since = 0.0
        self.records = 0
        self.until = math.inf

    def seconds_per_record(self) -> list[tuple[str, float]]:
        """Return the name and the seconds of each stage, reading first."""
        return [(name, seconds / self.records) for name, seconds in zip(self._names, self._seconds, strict=True)]

    def pause(self) -> None:
        """Stop the clock until the next record."""
        self._note(None)

    @property
    def record(self) -> int:
        """Not kept: nothing reads it."""
        return IDLE

    @record.setter
    def record(self, record: int) -> None:
        if record != IDLE:
            self.records += 1
            self._note(0)

    @property
    def stage(self) -> int:
        """Not kept: nothing reads it."""
        return READING

    @stage.setter
    def stage(self, stage: int) -> None:
        if stage != COLLATING:
            self._note(stage - READING)

    @property
    def cancelled(self) -> bool:
        """True when the time is up."""
        return time.perf_counter() >= self.until

    @cancelled.setter
    def cancelled(self, cancelled: bool) -> None:
        if cancelled:
            self.until = -math.inf

    def _note(self, place: int | None) -> None:
        now = time.perf_counter()
        if self._place is not None:
            self._seconds[self._place] += now - self._since
        self._place, self._since = place, now


class RecordRun:
    """Loads records in an order of its own, batch after batch, as the threads of an iterator do."""

    def __init__(self, workload: Workload, loader: Loader) -> None:
        self.stages = workload.stages
        self._loader = loader
        self._order = np.random.default_rng(workload.settings.seed).permutation(len(workload.records))
        self._batch = min(workload.settings.batch_size, len(workload.records))
        self._next = 0

    def load_for(self, seconds: float, clock: StageClock) -> None:
        """Load for so many seconds."""
        clock.until = time.perf_counter() + seconds
        self.load(clock)

    def load(self, clock: StageClock, most: float = math.inf) -> None:
        """Load until `clock.until`, which another thread may bring forward, or until `most` records are loaded."""
        arrays: dict[str, np.ndarray] = {}
        while time.perf_counter() < clock.until and clock.records < most:
            # Threads that take the same place load the same records, which costs them the same.
            first, self._next = self._next, self._next + self._batch
            indices = np.take(self._order, range(first, first + self._batch), mode="wrap")
            fields = self._loader.plan(indices, 0, ThreadCursor()).fields
            if any(arrays.get(name, EMPTY).shape[1:] != shape for name, (shape, _) in fields.items()):
                arrays = {name: np.empty((self._batch, *shape), dtype) for name, (shape, dtype) in fields.items()}
            self._loader.load(indices, 0, arrays, clock)
            clock.pause()
