"""The measuring process of one commit: its work, and how it handles requests.

The first request is `{"folder": ..., "strategies": [...], "packages": ...}`: the process writes the stores that these
strategies read. A request `{"strategy", "slower"}` opens a session in a forked process, which answers with an
`OpenedArm`. Each further request `{"metric", "epochs", "cpus"}` is a turn.

Epochs are short, so that a turn of one commit is a moment away from that of the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np

import etl
import presave
from benchmarks.cells import Cell
from benchmarks.datasets import find_photographs
from benchmarks.measuring.arrays import BatchDigest
from benchmarks.measuring.clock import run_epoch
from benchmarks.measuring.layout import draw_gaps
from benchmarks.measuring.same_work import DoneWork
from benchmarks.measuring.server import Answer, OpenSession, Request, Turn
from benchmarks.measuring.turns import OpenedArm, seconds_of, settle_on
from benchmarks.public_names import load_kernels
from benchmarks.workload import Data, make_iterator, make_pipeline, write_store

IMAGE_SIZE = 64
PHOTOGRAPHS = 32
ETL, WALL = METRICS = ("etl", "wall")
# A turn is as many epochs as take this long, and at least one. A virtual CPU's speed changes by a tenth from one
# millisecond to the next and by not much more within a second, so many short turns average out more than few long ones.
TURN_SECONDS = 0.002
MAX_EPOCHS = 100
# Each commit computes on one CPU; a strategy that loads ahead has another one for that.
COMPUTE_THREADS = 1
# Outputs of the layer that stands in for training.
UNITS = 64


@dataclass(frozen=True)
class CommitWork:
    """One epoch: `photographs` of the `PHOTOGRAPHS`, evenly spaced among them, loaded as `cell` says."""

    cell: Cell
    photographs: int


WORKS = {
    "raw": CommitWork(Cell("raw", batch_size=2), 2),
    "async-raw": CommitWork(Cell("async-raw", batch_size=1), 2),
    "presaved": CommitWork(Cell("presaved", batch_size=16), PHOTOGRAPHS),
    "async-presaved": CommitWork(Cell("async-presaved", batch_size=16), PHOTOGRAPHS),
}


def overlaps(strategy: str, metric: str) -> bool:
    """Return whether loading and compute run at the same time while `metric` of `strategy` is measured."""
    return metric == WALL and WORKS[strategy].cell.is_async


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Load the kernels and write the stores; raise `ImportError` if a package comes from another folder."""
    for package in (etl, presave):
        if (found := Path(package.__path__[0]).resolve().parent) != Path(request["packages"]).resolve():
            raise ImportError(f"it imported {package.__name__} from {found}, not from {request['packages']}")
    load_kernels()
    data = {name: make_data(WORKS[name], Path(request["folder"])) for name in request["strategies"]}
    return {}, partial(_open_session, data)


@contextmanager
def _open_session(data: Mapping[str, Data], request: Request) -> Iterator[tuple[Answer, Turn]]:
    cell, slower = WORKS[request["strategy"]].cell, request["slower"]
    wrap = partial(SlowLoader, share=slower) if slower else None
    # Without this, pages are given back and mapped again in every step, at a cost that varies between processes.
    with (
        etl.runtime.HeapPolicy("retain"),
        etl.runtime.ThreadPolicy(COMPUTE_THREADS),
        make_iterator(cell, data[request["strategy"]], wrap) as iterator,
    ):
        layer = Layer()
        digest = BatchDigest()
        samples = run_epoch(iterator, digest.update).samples
        computes: dict[str, Callable[[Any], None] | None] = {ETL: None, WALL: layer}
        run_epoch(iterator, layer)
        seconds = {metric: run_epoch(iterator, compute).wall.total for metric, compute in computes.items()}

        def turn(request: Request) -> Answer:
            settle_on(request["cpus"])
            gaps = draw_gaps()
            compute, epochs = computes[request["metric"]], request["epochs"]
            seconds = seconds_of(lambda: [run_epoch(iterator, compute) for _ in range(epochs)], not cell.is_async)
            del gaps
            return {"seconds": seconds / epochs}

        yield OpenedArm(DoneWork(samples, digest.hexdigest()), seconds).to_json(), turn


class SlowLoader:
    """A loader that takes longer by a known share, so that the A/A study knows which change is to be found.

    It burns CPU time of its own thread, so that a busy machine does not make it slower still. It takes the place of the
    loader of any commit, whatever other methods that one has.

    Parameters
    ----------
    share : float
        Time to add, as a share of the time that `loader` takes.
    """

    def __init__(self, loader: Any, share: float) -> None:
        self._loader = loader
        self._share = share

    def load(self, *arguments: Any, **keywords: Any) -> Any:
        """Load a chunk, and then spend the additional time."""
        started = thread_time()
        loaded = self._loader.load(*arguments, **keywords)
        ended = thread_time()
        until = ended + self._share * (ended - started)
        while thread_time() < until:
            pass
        return loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Layer:
    """A layer of a network: forward and backward in float32, by numpy, without updating its weights.

    It is work of the kind that training does, memory traffic included. Importing torch would take three seconds in
    every one of the fresh processes.
    """

    def __init__(self) -> None:
        self._weights: np.ndarray | None = None
        self.gradient = 0.0

    def __call__(self, batch: Any) -> None:
        features = np.asarray(batch.features, np.float32).reshape(len(batch.features), -1)
        if self._weights is None:
            self._weights = np.random.default_rng(0).standard_normal((features.shape[1], UNITS), np.float32)
        self.gradient = float((features.T @ (features @ self._weights))[0, 0])


def make_data(work: CommitWork, folder: Path) -> Data:
    """Copy the photographs of `work` into `folder`, evenly spaced so that they differ, and write its store there."""
    every = sorted(find_photographs(PHOTOGRAPHS).rglob("*.jpg"))
    photographs = folder / f"{work.cell.strategy}-photographs"
    for path in every[:: len(every) // work.photographs][: work.photographs]:
        copy = photographs / path.parent.name / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    source = etl.ImageFolder(photographs)
    data = Data(str(photographs), IMAGE_SIZE, len(source.classes), len(source), {}, {}, {}, {})
    if work.cell.is_presaved:
        path = folder / f"{work.cell.strategy}.store"
        write_store(path, source, make_pipeline(data), work.cell.presave_format, work.cell.presave_stage)
        data.stores[work.cell.store] = str(path)
    return data
