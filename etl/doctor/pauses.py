"""What the garbage collector takes in a training: pauses by generation. Loads torch."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from etl.doctor.setup import Setup
from etl.doctor.steps import time_steps
from etl.runtime.gc_watch import GENERATIONS, Collection, CollectionWatch


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
    found: list[Collection] = []

    def around() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(CollectionWatch(found.append))
        return stack

    times, _ = time_steps(setup, batches, around)
    per_batch = [0.0] * batches
    for each in found:
        # What is left between two batches belongs to the one after it.
        number = next((index for index, end in enumerate(times.ended) if each.began < end), batches - 1)
        per_batch[number] += each.seconds
    generations = [_pauses(generation, found) for generation in range(GENERATIONS)]
    return Pauses(batches, sum(times.etl) + sum(times.compute), generations, per_batch)


def _pauses(generation: int, found: list[Collection]) -> GenerationPauses:
    own = [each for each in found if each.generation == generation]
    seconds = [each.seconds for each in own]
    freed = sum(each.freed for each in own)
    return GenerationPauses(generation, len(own), sum(seconds), max(seconds, default=0.0), freed)
