"""One measurement: all figures of one cell, in the process that this runs in, forked from the server it prepares."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import etl
from benchmarks.cell import Cell
from benchmarks.fork_ready import import_everything
from benchmarks.measuring.arrays import BatchDigest
from benchmarks.measuring.clock import EpochMetrics, EpochTimes, Step, run_epoch
from benchmarks.measuring.process_tree import PeakMemory
from benchmarks.measuring.server import Answer, OpenSession, Request, one_answer
from benchmarks.measuring.values import JsonValues, from_json
from benchmarks.workload import Data, Training, compute_threads, make_iterator

MOST_REPEATS = 20


@dataclass(frozen=True)
class Conditions(JsonValues):
    """What is the same for all cells.

    Attributes
    ----------
    data : Data
        What they load.
    seconds_per_figure : float
        How long each part is measured, of an epoch or more.
    cpus : tuple of int
        The CPUs, by number, that the process and everything it starts may run on.
    """

    data: Data
    seconds_per_figure: float
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Figures(JsonValues):
    """What one process measured of a cell.

    Attributes
    ----------
    etl : float
        Seconds to load an epoch when nothing else is done, the median.
    epoch : EpochMetrics
        The epoch of training with the median wall, so that its parts belong together.
    peak_memory : int
        Bytes, of the process and its children.
    digest, score : str, float
        Of all batches of an epoch, and the loss after it; the same for cells of equal work.
    """

    etl: float
    epoch: EpochMetrics
    peak_memory: int
    digest: str
    score: float


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Import everything under the `Conditions` that `request` is; a session, a `Cell`, answers with its `Figures`."""
    conditions = Conditions.from_json(request)
    os.sched_setaffinity(0, conditions.cpus)
    import_everything()

    return {}, one_answer(lambda cell: measure(from_json(Cell, cell), conditions).to_json())


def measure(cell: Cell, conditions: Conditions) -> Figures:
    """Return all figures of a cell, from one run.

    First one epoch that is not timed: it warms caches, takes the digest of all batches and watches memory. Then
    epochs of loading alone and of loading with training, until each has had `seconds_per_figure`.
    """
    with (
        etl.runtime.HeapPolicy(cell.heap),
        etl.runtime.ThreadPolicy(compute_threads(cell, len(conditions.cpus))),
        make_iterator(cell, conditions.data) as iterator,
    ):
        training = Training(cell, conditions.data)
        with etl.runtime.GcPolicy(cell.garbage_collection):
            digest = BatchDigest()
            with PeakMemory() as memory:
                run_epoch(iterator, digesting(training.step, digest))
                score = float(training.score)
            loading = _repeat(conditions.seconds_per_figure, lambda: run_epoch(iterator, None))
            both = _repeat(conditions.seconds_per_figure, lambda: run_epoch(iterator, training.step))
    return Figures(
        etl=statistics.median(times.wall.total for times in loading),
        epoch=sorted(both, key=lambda times: times.wall.total)[len(both) // 2].metrics,
        peak_memory=memory.nbytes,
        digest=digest.hexdigest(),
        score=score,
    )


def digesting(step: Step, digest: BatchDigest) -> Callable[[Any], None]:
    """Return a training step that first takes in every byte of the batch, with its shapes and dtypes."""

    def digested(batch: Any) -> None:
        digest.update(batch)
        step(batch)

    return digested


def _repeat(seconds: float, run: Callable[[], EpochTimes]) -> list[EpochTimes]:
    ended = time.perf_counter() + seconds
    times = [run()]
    while time.perf_counter() < ended and len(times) < MOST_REPEATS:
        times.append(run())
    return times
