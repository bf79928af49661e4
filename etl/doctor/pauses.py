"""What the garbage collector takes in a training: pauses by generation. Loads torch."""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from etl.doctor.setup import Setup
from etl.doctor.steps import time_steps
from etl.runtime.collections import GENERATIONS


@dataclass(frozen=True)
class GenerationPauses:
    """Collections of one generation: how many, their seconds together, the longest, and how many objects they freed."""

    generation: int
    count: int
    seconds: float
    longest_seconds: float
    freed: int


@dataclass(frozen=True)
class Pauses:
    """Of so many `batches`, which took `seconds`; `per_batch` are the seconds of collections in each of them."""

    batches: int
    seconds: float
    generations: list[GenerationPauses]
    per_batch: list[float]

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def watch_pauses(setup: Setup, batches: int) -> Pauses:
    """Train on `batches` and note every collection. Raises whatever training does."""
    watch = _Watch()

    def around() -> ExitStack:
        stack = ExitStack()
        gc.callbacks.append(watch)
        stack.callback(gc.callbacks.remove, watch)
        watch.began = time.perf_counter()
        return stack

    times, _ = time_steps(setup, batches, around)
    ends, end = [], watch.began
    for etl_seconds, compute_seconds in zip(times.etl, times.compute, strict=True):
        end += etl_seconds + compute_seconds
        ends.append(end)
    per_batch = [0.0] * batches
    for _, started, seconds, _ in watch.collections:
        # What is left between two batches belongs to the one after it.
        number = next((index for index, each in enumerate(ends) if started < each), batches - 1)
        per_batch[number] += seconds
    return Pauses(batches, sum(times.etl) + sum(times.compute), watch.generations(), per_batch)


class _Watch:
    """Called by the collector: notes of each collection its generation, start, seconds and what it freed."""

    def __init__(self) -> None:
        self.began = 0.0
        self.collections: list[tuple[int, float, float, int]] = []
        self._started = 0.0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._started = time.perf_counter()
        elif self._started:
            seconds = time.perf_counter() - self._started
            self.collections.append((info["generation"], self._started, seconds, info["collected"]))

    def generations(self) -> list[GenerationPauses]:
        """What was noted, by generation."""
        found = []
        for generation in range(GENERATIONS):
            own = [each for each in self.collections if each[0] == generation]
            seconds = [each[2] for each in own]
            freed = sum(each[3] for each in own)
            found.append(GenerationPauses(generation, len(own), sum(seconds), max(seconds, default=0.0), freed))
        return found
