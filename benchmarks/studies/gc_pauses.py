"""Pauses of a full garbage collection, by the number of objects on the heap and their shape.

    python -m benchmarks.studies.gc_pauses [--most N]     prints the table

Each value is the median of several `gc.collect()` in a process of its own that holds that many objects, and hardly
anything else. "frozen" is the same after `gc.freeze()`.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.journal import Kind, read_results
from benchmarks.measuring.values import JsonValues
from benchmarks.studies.study import FOLDER, Plan, as_markdown, in_fresh_process, print_lines, run_study, study_parser

COUNTS = (10_000, 100_000, 500_000, 1_000_000, 10_000_000)
REPEATS = 5
# What the source documents say of a JVM: "Performance Issues", step 4.
JVM_GUIDE = {
    10_000: "short",
    100_000: "noticeable, 50 to 250 ms",
    500_000: "can be a bottleneck",
    1_000_000: "can be a bottleneck",
    10_000_000: "several seconds",
}
# Upper bound for one object and what it holds, on a 64-bit CPython. A heap that might not fit into memory is refused.
MAX_NBYTES_EACH = 600


class Instance:
    """An instance of an ordinary class, with its attributes in a dictionary."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = "record"


class Slotted:
    """An instance without a dictionary."""

    __slots__ = ("name", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = "record"


def linked(count: int) -> Any:
    """Return a list in a list, and so on: each is reached only through the one before."""
    chain: list[Any] = []
    for _ in range(count):
        chain = [chain]
    return chain


# Each function makes the given number of objects that the collector tracks.
SHAPES: dict[str, Callable[[int], Any]] = {
    "empty lists": lambda count: [[] for _ in range(count)],
    # Before Python 3.14 a dictionary of nothing but numbers and text is not tracked, so each one holds a list.
    "records": lambda count: [{"label": number, "features": [number]} for number in range(count // 2)],
    "instances": lambda count: [Instance(number) for number in range(count)],
    "slotted instances": lambda count: [Slotted(number) for number in range(count)],
    "linked lists": linked,
}


@dataclass(frozen=True)
class Pauses(JsonValues):
    """Seconds of each collection, before and after freezing, and the number of objects that the collector tracked."""

    seconds: list[float]
    frozen: list[float]
    tracked: int


PAUSES: Kind[tuple[int, str], Pauses] = Kind("gc_pauses", tuple[int, str], Pauses)


def pause(shape: str, objects: int) -> Pauses:
    """Time collections of a heap of a shape, a key of `SHAPES`, in a fresh process.

    Raises
    ------
    MemoryError
        If that many objects might not fit into memory.
    BrokenProcessPool
        If the process ended without an answer.
    """
    needed, available = objects * MAX_NBYTES_EACH, psutil.virtual_memory().available
    if needed > available:
        raise MemoryError(f"{objects:,} objects may take {needed:,} bytes, and {available:,} are available")
    return in_fresh_process(_measure, shape, objects, method="fork")


def _measure(shape: str, objects: int) -> Pauses:
    gc.collect()
    gc.freeze()  # the objects of the parent process
    gc.disable()
    held = SHAPES[shape](objects)
    tracked = len(gc.get_objects())
    seconds = [_collection() for _ in range(REPEATS + 1)][1:]  # the first moves them to the oldest generation
    gc.freeze()
    frozen = [_collection() for _ in range(REPEATS)]
    del held
    return Pauses(seconds, frozen, tracked)


def _collection() -> float:
    started = time.perf_counter()
    gc.collect()
    return round(time.perf_counter() - started, 7)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the heaps that are missing, and print the table; return 2 if that fails."""
    options = study_parser("benchmarks.studies.gc_pauses", __doc__, most=COUNTS[-1]).parse_args(arguments)
    return run_study(
        PAUSES,
        options.samples or FOLDER / "gc-pauses.jsonl",
        Plan(
            question="How long does a full collection take?",
            arms=f"heaps of {', '.join(SHAPES)}, each in a fresh process",
            number=f"{REPEATS} collections of each heap, and as many after gc.freeze()",
            nominal_error="none: medians without intervals",
            stopping="when all heaps are measured",
            exclusions="the first collection, which moves the objects to the oldest generation",
            primary="milliseconds of gc.collect()",
        ),
        {"repeats": REPEATS},
        [(count, shape) for count in COUNTS if count <= options.most for shape in SHAPES],
        lambda key: pause(key[1], key[0]),
        lambda results, console: print_lines("A full collection, ms", lines_of(results), console),
        lambda key: f"{key[0]:,} objects, {key[1]}",
    )


def render(path: Path) -> str:
    """Return what a journal says, as a Markdown table."""
    return as_markdown(lines_of(read_results(path, PAUSES))) + "\n"


def lines_of(results: Mapping[tuple[int, str], Pauses]) -> list[tuple[str, ...]]:
    """Return the lines of the table: median milliseconds by number of objects and shape."""
    lines: list[tuple[str, ...]] = [("objects", *SHAPES, "frozen, any shape", "a JVM, by the documents")]
    for count in COUNTS:
        found = [results[count, shape] for shape in SHAPES if (count, shape) in results]
        if len(found) < len(SHAPES):  # an interrupted study
            continue
        medians = (f"{statistics.median(each.seconds) * 1e3:,.2f}" for each in found)
        frozen = max(max(each.frozen) for each in found)
        lines.append((f"{count:,}", *medians, f"at most {frozen * 1e3:,.3f}", JVM_GUIDE[count]))
    return lines


if __name__ == "__main__":
    sys.exit(main())
