"""Delays that are known, for the oracles of both clocks."""

from __future__ import annotations

import time

import numpy as np

from etl.sources import Record


class Delay:
    """Waits, and keeps how long that really took: at least what was asked for, more on a busy machine."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.taken: list[float] = []

    def __call__(self, *_: object) -> None:
        started = time.perf_counter()
        time.sleep(self._seconds)
        self.taken.append(time.perf_counter() - started)


class SlowSource:
    """So many records, each of which takes as long to load as `delay` says."""

    def __init__(self, delay: Delay, records: int) -> None:
        self._delay = delay
        self._records = records

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, index: int) -> Record:
        self._delay()
        return {"features": np.zeros(4, np.float32), "label": index}
