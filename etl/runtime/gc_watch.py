"""Watching CPython's garbage collector: how often it runs, and for how long."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

GENERATIONS = 3


@dataclass(frozen=True)
class Collections:
    """Totals of the garbage collections of one generation.

    Attributes
    ----------
    generation : int
        0, 1 or 2.
    count : int
        Number of collections.
    seconds : float
        Time that they took together.
    """

    generation: int
    count: int
    seconds: float


@dataclass(frozen=True)
class Collection:
    """One garbage collection: its start by `time.perf_counter`, its duration, and the number of objects freed."""

    generation: int
    began: float
    seconds: float
    freed: int


class CollectionWatch:
    """A context manager that counts collections through `gc.callbacks` and passes each to `listener`."""

    def __init__(self, listener: Callable[[Collection], None] | None = None) -> None:
        self._listener = listener
        self._counts = [0] * GENERATIONS
        self._seconds = [0.0] * GENERATIONS
        self._began: float | None = None

    def start(self) -> None:
        """Start counting from 0; do nothing if already started."""
        if self._notice not in gc.callbacks:
            self.take()
            self._began = None
            gc.callbacks.append(self._notice)

    def stop(self) -> None:
        """Stop counting; do nothing if not started."""
        if self._notice in gc.callbacks:
            gc.callbacks.remove(self._notice)

    def take(self) -> list[Collections]:
        """Return the collections since the last call, one entry for each generation, and start again from 0."""
        taken = [
            Collections(generation, count, seconds)
            for generation, (count, seconds) in enumerate(zip(self._counts, self._seconds, strict=True))
        ]
        self._counts = [0] * GENERATIONS
        self._seconds = [0.0] * GENERATIONS
        return taken

    @property
    def count(self) -> int:
        """The number of collections of all generations since the last `take`."""
        return sum(self._counts)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _notice(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        elif self._began is not None:  # otherwise the watch was started in the middle of this collection
            generation, seconds = info["generation"], time.perf_counter() - self._began
            self._counts[generation] += 1
            self._seconds[generation] += seconds
            if self._listener is not None:
                self._listener(Collection(generation, self._began, seconds, info["collected"]))
