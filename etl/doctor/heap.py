"""What is on the heap: objects by type, and which type grows from epoch to epoch."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

EPOCHS = 4
# A type leaks where it grows in every one of the epochs after the first, by so many objects each.
LEAST_GROWTH = 10


@dataclass(frozen=True)
class TypeOnHeap:
    """Objects of one type that the garbage collector tracks, and their own bytes (`sys.getsizeof`: without what they
    refer to; of an array its memory is in it where it owns that).
    """

    name: str
    count: int
    nbytes: int


@dataclass(frozen=True)
class Growth:
    """How many objects of a type that the collector tracks were more after each epoch than after the one before, the
    first left out.
    """

    name: str
    per_epoch: list[int]


@dataclass(frozen=True)
class Heap:
    """`objects` in all; `types` the largest first, by bytes; `leaks` the types that grow in every epoch (empty where no
    epochs were run).
    """

    objects: int
    types: list[TypeOnHeap]
    leaks: list[Growth]

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def look_at_heap(run_epoch: Callable[[], None] | None = None, epochs: int = EPOCHS) -> Heap:
    """The heap as it is; after `epochs` of `run_epoch`, where that is given."""
    leaks = [] if run_epoch is None else _leaks(run_epoch, epochs)
    counts, sizes = _census()
    types = [TypeOnHeap(name, count, sizes[name]) for name, count in counts.items()]
    return Heap(sum(counts.values()), sorted(types, key=lambda each: -each.nbytes), leaks)


def _leaks(run_epoch: Callable[[], None], epochs: int) -> list[Growth]:
    """Types that have grown by at least `LEAST_GROWTH` in every epoch but the first, which fills caches."""
    counts: list[Mapping[str, int]] = []
    for _ in range(epochs):
        run_epoch()
        gc.collect()
        counts.append(Counter(map(_type_name, gc.get_objects())))
    names = set(counts[-1])
    growths = [
        Growth(name, [after.get(name, 0) - before.get(name, 0) for before, after in pairwise(counts)]) for name in names
    ]
    leaking = [each for each in growths if min(each.per_epoch) >= LEAST_GROWTH]
    return sorted(leaking, key=lambda each: -sum(each.per_epoch))


def _census() -> tuple[Counter[str], Counter[str]]:
    """Objects and bytes by type; those that only this looks at are not counted."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    for each in gc.get_objects():
        for thing in (each, *_untracked(each)):
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            name = _type_name(thing)
            counts[name] += 1
            with contextlib.suppress(Exception):  # a class may say anything of its size
                sizes[name] += sys.getsizeof(thing)
    return counts, sizes


def _type_name(thing: Any) -> str:
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _untracked(container: Any) -> list[Any]:
    """What a container refers to that the collector does not track, such as text, numbers and arrays."""
    return [each for each in gc.get_referents(container) if not gc.is_tracked(each)]
