"""A clock for the stages of a pipeline, while records go through all of them as in an iterator's thread."""

from __future__ import annotations

import math
import time
from collections.abc import MutableSequence
from typing import Any

import numpy as np

from etl.comparison.workload import Workload
from etl.loading.batch_plan import Loader, nowhere
from etl.stages.pipeline import READING

EMPTY = np.empty((0, 0))


class StageClock(MutableSequence[int]):
    """What a loader writes down of where it is (see `etl.loading.loading.Where`), as times: the seconds between two
    notes are those of the stage that the first of them named. It has the loader stop at `until`, a time of
    `time.perf_counter`, after the record that it is at.
    """

    def __init__(self, stages: tuple[str, ...]) -> None:
        self._names = stages
        self._seconds = [0.0] * len(stages)
        self._place: int | None = None
        self._since = 0.0
        self.records = 0
        self.until = math.inf

    def seconds_per_record(self) -> list[tuple[str, float]]:
        """For each stage, reading first; storing a record in its batch is in the last."""
        return [(name, seconds / self.records) for name, seconds in zip(self._names, self._seconds, strict=True)]

    def pause(self) -> None:
        """What follows is no loading."""
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
            numbers = np.take(self._order, range(first, first + self._batch), mode="wrap")
            layout = self._loader.lay_out(numbers, 0, nowhere())
            if any(arrays.get(name, EMPTY).shape[1:] != shape for name, (shape, _) in layout.items()):
                arrays = {name: np.empty((self._batch, *shape), dtype) for name, (shape, dtype) in layout.items()}
            self._loader.load(numbers, 0, arrays, clock)
            clock.pause()
