"""Records read from a store, against the limits that memory sets: memcpy of the same bytes, and fill of the output.

    python -m benchmarks.gather [--rows N] [--rounds N]     prints the table

Everything is warm. Every operation is measured in every round, so that both sides of a ratio are of the same minute.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import etl
import presave
from benchmarks.cells import chosen_profile
from benchmarks.console import print_table, wide_console
from benchmarks.public_names import find_public, load_kernels
from benchmarks.suite import SEED, Operation, TimedSuite, Timings, as_samples, attributes, explained, in_rounds, ratios

PROFILE = chosen_profile()
# The size of nearly all published benchmarks; together more than the caches of most processors hold.
ROWS, BATCH, SIDE = 256, 64, 224
PASSES = 5
THREADS = 2
# The library that each format is read with; it may not be installed.
NEEDS = {"npy": "numpy", "hdf5": "h5py", "pickle": "pickle", "torch": "torch", "safetensors": "safetensors"}
ORDERS = ("sequential", "shuffled")
KERNELS = ("numba", "numpy")
# The names of the operations in which two threads share the work of a kernel.
TWO_THREADS = {kernel: f"{kernel}, two threads" for kernel in KERNELS}
# The limit of each operation: another one of the same memory traffic, or less. `fill` reads each cache line before it
# writes it, which a compiled loop need not for a large output. It is memcpy for all that are not listed.
LIMITS: dict[str, str | None] = {
    "memcpy": None,
    "fill": None,
    **dict.fromkeys(KERNELS, "fill"),
    **{together: kernel for kernel, together in TWO_THREADS.items()},
}
MEASURING_TIMEOUT_SECONDS = 3600
# Aims, shown in the printed table: by operation and limit, the share of the limit's speed to reach.
AIMS = {("npy shuffled", "memcpy"): 0.9, ("hdf5 shuffled", "npy shuffled"): 0.8, ("numba", "fill"): 0.8}


@explained
class Gather(TimedSuite):
    """Rows of 224 x 224 x 3 bytes gathered into a buffer in batches of 64, from stores of every format."""

    params = [list(NEEDS), list(ORDERS)]
    param_names = ["format", "order"]

    @attributes(timeout=MEASURING_TIMEOUT_SECONDS)
    def setup_cache(self) -> Timings:
        return measure_operations(Path.cwd(), ROWS, PROFILE.rounds)

    def operations(self, format: str, order: str) -> tuple[str, ...]:
        return f"{format} {order}", "memcpy"

    @attributes(unit="ratio")
    def track_over_memcpy(self, cache: Timings, *values: str) -> dict[str, Any]:
        """Seconds over those of one thread's memcpy of the same bytes: 1.0 is the limit of memory."""
        return as_samples(ratios(cache, *self.operations(*values)))


@explained
class GatherNormalised(TimedSuite):
    """Rows of 224 x 224 x 3 bytes gathered, cast and normalised to float32, channels first, by one thread."""

    params = [list(KERNELS)]
    param_names = ["kernel"]
    setup_cache = Gather.setup_cache

    def operations(self, kernel: str) -> tuple[str, ...]:
        return kernel, "fill"

    @attributes(unit="ratio")
    def track_over_fill(self, cache: Timings, kernel: str) -> dict[str, Any]:
        """Seconds over those of one pass of `fill` over the output, which reads each cache line before it writes it."""
        return as_samples(ratios(cache, *self.operations(kernel)))


@explained
class SecondThread(TimedSuite):
    """Rows gathered and normalised by two threads, each with batches of its own: at best 0.5, on two free cores."""

    params = [list(KERNELS)]
    param_names = ["kernel"]
    setup_cache = Gather.setup_cache

    def operations(self, kernel: str) -> tuple[str, ...]:
        return TWO_THREADS[kernel], kernel

    @attributes(unit="ratio")
    def track_two_threads_over_one(self, cache: Timings, kernel: str) -> dict[str, Any]:
        """Seconds with two threads over seconds with one."""
        return as_samples(ratios(cache, *self.operations(kernel)))


def measure_operations(folder: Path, rows: int, rounds: int) -> Timings:
    """Check and time all operations that this commit and this machine support; `rows` is a multiple of `BATCH`."""
    images = np.random.default_rng(SEED).integers(0, 256, (rows, SIDE, SIDE, 3), np.uint8)
    records = [{"features": image, "label": number} for number, image in enumerate(images)]
    with ExitStack() as stack:
        stores = {
            name: stack.enter_context(presave.write(folder / f"{name}.store", records, format=name))
            for name, library in NEEDS.items()
            if name in presave.formats() and importlib.util.find_spec(library) is not None
        }
        load_kernels()
        operations = {
            **_copying(images, stores),
            **_normalising(stores["npy"], stack.enter_context(ThreadPoolExecutor(THREADS))),
        }
        return in_rounds(operations, rounds, PASSES)


def _copying(images: np.ndarray, stores: dict[str, presave.Store]) -> dict[str, Operation]:
    out = np.zeros((BATCH, *images.shape[1:]), np.uint8)

    def memcpy() -> None:
        for first in range(0, len(images), BATCH):
            np.copyto(out, images[first : first + BATCH])

    def gather(store: presave.Store, order: str) -> None:
        for indices in _batches(len(store), order):
            store.gather(indices, {"features": out})

    def take() -> None:
        for indices in _batches(len(images), "shuffled"):
            images.take(indices, 0, out, "clip")

    # `take` shows the speed of a compiled loop over the rows of one array.
    operations: dict[str, Operation] = {"memcpy": memcpy, "take, in memory": take}
    for name, store in stores.items():
        for order in ORDERS:
            gather(store, order)
            if not np.array_equal(out, images[_batches(len(store), order)[-1]]):
                raise RuntimeError(f"{store.path} does not give the records that were written, in {order} order")
            operations[f"{name} {order}"] = partial(gather, store, order)
    return operations


def _normalising(store: presave.Store, pool: ThreadPoolExecutor) -> dict[str, Operation]:
    batches = _batches(len(store), "shuffled")
    # An output for each thread.
    outs = [np.zeros((BATCH, 3, SIDE, SIDE), np.float32) for _ in range(THREADS)]

    def fill() -> None:
        for _ in batches:
            outs[0].fill(1)

    operations: dict[str, Operation] = {"fill": fill}
    gather_normalised = find_public("gather_normalised")
    if gather_normalised is None:
        return operations
    normalise = etl.stages.Normalise()

    def load(kernel: str, batches: Sequence[np.ndarray], out: np.ndarray) -> None:
        for indices in batches:
            gather_normalised(store, indices, normalise, out, kernel=kernel)

    def load_in_threads(kernel: str) -> None:
        parts = [batches[thread::THREADS] for thread in range(THREADS)]
        list(pool.map(load, [kernel] * THREADS, parts, outs))

    digests = set()
    for kernel in KERNELS:
        if importlib.util.find_spec(kernel) is None:
            continue
        load(kernel, batches, outs[0])
        digests.add(outs[0].tobytes())
        operations[kernel] = partial(load, kernel, batches, outs[0])
        if len(os.sched_getaffinity(0)) >= THREADS:
            operations[TWO_THREADS[kernel]] = partial(load_in_threads, kernel)
    if len(digests) != 1:
        raise RuntimeError("the kernels do not give the same bits")
    return operations


def _batches(rows: int, order: str) -> list[np.ndarray]:
    indices = np.arange(rows)
    if order == "shuffled":
        np.random.default_rng(SEED).shuffle(indices)
    return list(indices.reshape(-1, BATCH))


def show(results: Timings, rows: int, console: Console) -> None:
    """Print the time of each operation and its share of its limit's speed, with the range over rounds."""
    rounds = len(results["memcpy"])
    table = Table(
        title=f"{rows:,} rows of {SIDE} x {SIDE} x 3 in batches of {BATCH}, warm, {rounds} interleaved rounds",
        caption="share of the limit's speed, paired within a round: median, smallest and largest",
    )
    table.add_column("")
    for column in ("ms", "images/s", "share", "range", "of", "aim"):
        table.add_column(column, justify="right")
    comparisons = [(name, LIMITS.get(name, "memcpy")) for name in results] + [("hdf5 shuffled", "npy shuffled")]
    for name, limit in comparisons:
        seconds = statistics.median(results[name])
        shown = [f"{seconds * 1e3:,.1f}", f"{rows / seconds:,.0f}"]
        if limit is not None:
            shares = ratios(results, limit, name)
            aim = AIMS.get((name, limit))
            shown += [
                f"{statistics.median(shares):.2f}",
                f"{min(shares):.2f} - {max(shares):.2f}",
                limit,
                "" if aim is None else f"{aim:.1f}",
            ]
        table.add_row(name, *shown)
    print_table(table, console, first=("ms", "images/s", "share", "of"))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gather", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="interleaved rounds (default: 20)")
    parser.add_argument(
        "--rows", type=int, default=16 * BATCH, metavar="N", help=f"a multiple of {BATCH} (default: {16 * BATCH})"
    )
    options = parser.parse_args(arguments)
    if options.rows < 1 or options.rows % BATCH:
        parser.error(f"--rows must be a positive multiple of {BATCH}, not {options.rows}")
    with tempfile.TemporaryDirectory() as folder:
        show(measure_operations(Path(folder), options.rows, options.rounds), options.rows, wide_console())


if __name__ == "__main__":
    main()
