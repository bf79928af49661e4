"""One measurement: all figures of one cell, in the process that this runs in, forked from the server it prepares."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import etl
from benchmarks.cell import Cell
from benchmarks.fork_ready import import_everything
from benchmarks.measuring.arrays import BatchDigest
from benchmarks.measuring.clock import EpochTimes, run_epoch
from benchmarks.measuring.process_tree import PeakMemory
from benchmarks.measuring.server import Answer, OpenSession, Request, Turn
from benchmarks.workload import COMPUTE_THREADS, Data, Training, make_iterator

MOST_REPEATS = 20


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Import everything, for `{"data", "seconds_per_figure"}`; a session `{"cell"}` answers with its figures."""
    import_everything()
    data = Data(**request["data"])

    @contextmanager
    def open_session(opened: Request) -> Iterator[tuple[Answer, Turn]]:
        yield measure(Cell(**opened["cell"]), data, request["seconds_per_figure"]), _no_turn

    return {}, open_session


def _no_turn(request: Request) -> Answer:
    raise ValueError(f"a cell is measured once, not at {request}")


def measure(cell: Cell, data: Data, seconds_per_figure: float) -> dict[str, Any]:
    """All figures of a cell, from the same run: seconds, and bytes of peak memory.

    First one epoch that is not timed: it warms caches, takes the digest of all batches and watches memory. Then
    epochs of loading alone and of loading with training, until each has had `seconds_per_figure`. Of the latter, wall,
    compute and stall are those of the epoch with the median wall, so that they belong together.
    """
    with (
        etl.runtime.HeapPolicy(cell.heap),
        etl.runtime.ThreadPolicy(COMPUTE_THREADS),
        make_iterator(cell, data) as iterator,
    ):
        training = Training(cell, data)
        with etl.runtime.GcPolicy(cell.garbage_collection):
            digest = BatchDigest()
            with PeakMemory() as memory:
                run_epoch(iterator, digesting(training, digest))
            score = float(training.score)
            loading = _repeat(seconds_per_figure, lambda: run_epoch(iterator, None))
            both = _repeat(seconds_per_figure, lambda: run_epoch(iterator, training))
    typical = sorted(both, key=lambda times: times.wall.total)[len(both) // 2]
    return {
        "etl": statistics.median(times.wall.total for times in loading),
        "wall": typical.wall.total,
        "compute": typical.compute.total,
        "stall": typical.stall.total,
        "peak_memory": memory.nbytes,
        "samples": typical.samples,
        "digest": digest.hexdigest(),
        "score": score,
    }


def digesting(training: Training, digest: BatchDigest) -> Callable[[Any], None]:
    """A training step that first takes in every byte of the batch, with its shapes and dtypes."""

    def step(batch: Any) -> None:
        digest.update(batch)
        training(batch)

    return step


def _repeat(seconds: float, run: Callable[[], EpochTimes]) -> list[EpochTimes]:
    ended = time.perf_counter() + seconds
    times = [run()]
    while time.perf_counter() < ended and len(times) < MOST_REPEATS:
        times.append(run())
    return times
