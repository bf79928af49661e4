"""The Python heap: objects by type, types that leak, and pauses of the garbage collector. Imports torch."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from etl.doctor.setup import Setup
from etl.doctor.steps import time_steps
from etl.runtime.gc_watch import GENERATIONS, Collection, CollectionWatch

EPOCHS = 4
# A type leaks if every epoch after the first adds at least this many objects of it.
MIN_GROWTH = 10


@dataclass(frozen=True)
class TypeOnHeap:
    """The objects of one type that the garbage collector tracks, or that a tracked object refers to."""

    name: str
    count: int
    # Sum of `sys.getsizeof`, which includes the memory that an array owns, but not the objects that are referred to.
    nbytes: int


@dataclass(frozen=True)
class Growth:
    """The additional objects of one type after each epoch except the first."""

    name: str
    per_epoch: list[int]


@dataclass(frozen=True)
class Heap:
    """The objects on the heap by type, most bytes first, and the types that grow in every epoch."""

    objects: int
    types: list[TypeOnHeap]
    leaks: list[Growth]


def look_at_heap(run_epoch: Callable[[], object]) -> Heap:
    """Run a few epochs to find types that leak, and count the objects on the heap."""
    leaks = _leaks(run_epoch)
    counts, sizes = _census()
    types = [TypeOnHeap(name, count, sizes[name]) for name, count in counts.items()]
    return Heap(sum(counts.values()), sorted(types, key=lambda each: -each.nbytes), leaks)


def _leaks(run_epoch: Callable[[], object]) -> list[Growth]:
    """Return the types that grow by `MIN_GROWTH` or more in every epoch except the first, which fills caches."""
    counts: list[Counter[str]] = []
    for _ in range(EPOCHS):
        run_epoch()
        gc.collect()
        counts.append(Counter(map(_type_name, gc.get_objects())))
    growths = [Growth(name, [after[name] - before[name] for before, after in pairwise(counts)]) for name in counts[-1]]
    leaking = [each for each in growths if min(each.per_epoch) >= MIN_GROWTH]
    return sorted(leaking, key=lambda each: -sum(each.per_epoch))


def _census() -> tuple[Counter[str], Counter[str]]:
    """Count objects and bytes by type."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    for each in gc.get_objects():
        # What the collector does not track are strings, numbers, arrays.
        for thing in (each, *(other for other in gc.get_referents(each) if not gc.is_tracked(other))):
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            name = _type_name(thing)
            counts[name] += 1
            with contextlib.suppress(Exception):  # `__sizeof__` of a class may raise anything
                sizes[name] += sys.getsizeof(thing)
    return counts, sizes


def _type_name(thing: Any) -> str:
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


@dataclass(frozen=True)
class GenerationPauses:
    """The collections of one generation: their number, time, longest time, and the objects that they freed."""

    generation: int
    count: int
    seconds: float
    longest_seconds: float
    freed: int


@dataclass(frozen=True)
class Pauses:
    """The pauses of the garbage collector in a training."""

    batches: int
    # Of loading these batches and training on them.
    seconds: float
    generations: list[GenerationPauses]
    # Seconds of collections.
    per_batch: list[float]


def watch_pauses(setup: Setup, batches: int) -> Pauses:
    """Train on `batches` batches and record every garbage collection. Errors of training are raised unchanged."""
    found: list[Collection] = []
    times, _ = time_steps(setup, batches, lambda: CollectionWatch(found.append))
    per_batch = [0.0] * batches
    for each in found:
        # A collection between two batches counts for the second.
        number = next((index for index, end in enumerate(times.ended) if each.began < end), batches - 1)
        per_batch[number] += each.seconds
    generations = [_pauses(generation, found) for generation in range(GENERATIONS)]
    return Pauses(batches, sum(times.etl) + sum(times.compute), generations, per_batch)


def _pauses(generation: int, found: list[Collection]) -> GenerationPauses:
    own = [each for each in found if each.generation == generation]
    seconds = [each.seconds for each in own]
    freed = sum(each.freed for each in own)
    return GenerationPauses(generation, len(own), sum(seconds), max(seconds, default=0.0), freed)
