"""Pauses of a full garbage collection, by the number of objects on the heap and their shape.

    python -m benchmarks.studies.gc_pauses [--most N] [--shapes NAME,...]     prints the table

Each value is the median of several `gc.collect()` in a process of its own that holds that many objects, and hardly
anything else. "frozen" is the same after `gc.freeze()`.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import psutil
from rich.table import Table

from benchmarks.console import comma_separated, print_table, wide_console

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


def pause(shape: str, objects: int) -> dict[str, Any]:
    """Time collections, before and after freezing, in a fresh process.

    Parameters
    ----------
    shape : str
        A key of `SHAPES`.

    Returns
    -------
    A dictionary: the seconds of each collection, "seconds" and "frozen", and the objects that were "tracked".

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
    with ProcessPoolExecutor(1, get_context("fork")) as fresh:
        return fresh.submit(_measure, shape, objects).result()


def _measure(shape: str, objects: int) -> dict[str, Any]:
    gc.collect()
    gc.freeze()  # the objects of the parent process
    gc.disable()
    held = SHAPES[shape](objects)
    tracked = len(gc.get_objects())
    seconds = [_collection() for _ in range(REPEATS + 1)][1:]  # the first moves them to the oldest generation
    gc.freeze()
    frozen = [_collection() for _ in range(REPEATS)]
    del held
    return {"seconds": seconds, "frozen": frozen, "tracked": tracked}


def _collection() -> float:
    started = time.perf_counter()
    gc.collect()
    return time.perf_counter() - started


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.gc_pauses", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--most", type=int, default=COUNTS[-1], metavar="N", help=f"maximum number of objects (default: {COUNTS[-1]:,})"
    )
    parser.add_argument(
        "--shapes",
        type=comma_separated(SHAPES, "shape"),
        default=tuple(SHAPES),
        metavar="NAME,...",
        help="(default: all)",
    )
    options = parser.parse_args(arguments)
    shapes = options.shapes
    table = Table(title="A full collection, ms")
    table.add_column("objects", justify="right")
    for name in (*shapes, "frozen, any shape"):
        table.add_column(name, justify="right")
    table.add_column("a JVM, by the documents")
    for count in (each for each in COUNTS if each <= options.most):
        found = [pause(name, count) for name in shapes]
        frozen = max(max(each["frozen"]) for each in found)
        table.add_row(
            f"{count:,}",
            *(f"{statistics.median(each['seconds']) * 1e3:,.2f}" for each in found),
            f"at most {frozen * 1e3:,.3f}",
            JVM_GUIDE[count],
        )
    print_table(table, wide_console())


if __name__ == "__main__":
    main()
