"""Records that tell when each is begun, and may wait or fail."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import numpy as np

LIMIT_SECONDS = 20
# Only what goes wrong is waited for: a test that passes spends this time once.
TOO_FAR_SECONDS = 0.1


class Watched(list[Any]):
    """Records that tell when each is begun; those `waiting` wait until the gate is open, those `failing` fail."""

    def __init__(
        self, count: int, waiting: Collection[int] = (), failing: Collection[int] = (), *, width: int = 3
    ) -> None:
        super().__init__({"features": np.full(width, number, np.float32), "label": number} for number in range(count))
        self.waiting, self.failing = waiting, failing
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)

    def __getitem__(self, index: Any) -> Any:
        self.begun.release()
        if index in self.waiting:
            assert self.gate.wait(LIMIT_SECONDS)
        if index in self.failing:
            raise OSError("disk on fire")
        return super().__getitem__(index)

    def describe(self, index: int) -> str:
        return f"{index}.jpg"

    def assert_begun(self, count: int) -> None:
        """Wait until so many more are begun, and no more than that."""
        for _ in range(count):
            assert self.begun.acquire(timeout=LIMIT_SECONDS)
        assert not self.begun.acquire(timeout=TOO_FAR_SECONDS)
