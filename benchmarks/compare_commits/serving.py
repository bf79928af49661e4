"""What the process of one commit does.

Its first request is `{"folder": ..., "strategies": [...]}`: it writes the stores that these read. The process that is
forked for a `{"strategy": ...}` answers with what it loaded and how long that took, and takes turns
`{"figure", "epochs", "cpus"}`.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import etl
from benchmarks.cell import Cell
from benchmarks.compare_commits.compute import Layer
from benchmarks.compare_commits.work import ETL, IMAGE_SIZE, PHOTOGRAPHS, WALL, WORKS, Work
from benchmarks.fork_ready import load_kernels
from benchmarks.measuring.arrays import BatchDigest
from benchmarks.measuring.clock import run_epoch
from benchmarks.measuring.layout import draw_gaps
from benchmarks.measuring.server import Answer, OpenSession, Request, Turn
from benchmarks.measuring.turns import seconds_of, settle_on
from benchmarks.stores import write_store
from benchmarks.workload import Data, find_photographs, make_iterator, make_pipeline

# Each commit is on one CPU; what loads ahead has another one.
COMPUTE_THREADS = 1


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Import everything, write the stores, and say where the packages come from."""
    load_kernels()
    data = {name: _make_data(WORKS[name], Path(request["folder"])) for name in request["strategies"]}

    @contextmanager
    def open_session(request: Request) -> Iterator[tuple[Answer, Turn]]:
        name = request["strategy"]
        with _turns(WORKS[name].cell, data[name]) as turns:
            yield turns

    return {"etl": str(_package_folder("etl")), "presave": str(_package_folder("presave"))}, open_session


@contextmanager
def _turns(cell: Cell, data: Data) -> Iterator[tuple[Answer, Turn]]:
    # Pages that are given back and mapped again in every step cost more or less from process to process.
    with (
        etl.runtime.HeapPolicy("retain"),
        etl.runtime.ThreadPolicy(COMPUTE_THREADS),
        make_iterator(cell, data) as iterator,
    ):
        layer = Layer()
        digest = BatchDigest()
        samples = run_epoch(iterator, digest.update).samples
        computes: dict[str, Callable[[Any], None] | None] = {ETL: None, WALL: layer}
        run_epoch(iterator, layer)
        seconds = {figure: run_epoch(iterator, compute).wall.total for figure, compute in computes.items()}

        def turn(request: Request) -> Answer:
            settle_on(request["cpus"])
            gaps = draw_gaps()
            compute, epochs = computes[request["figure"]], request["epochs"]
            seconds = seconds_of(lambda: [run_epoch(iterator, compute) for _ in range(epochs)], not cell.is_async)
            del gaps
            return {"seconds": seconds / epochs}

        yield {"digest": digest.hexdigest(), "samples": samples, "seconds": seconds}, turn


def _make_data(work: Work, folder: Path) -> Data:
    """The photographs of `work`, as different ones as there are, and its store, below `folder`."""
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


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"no package {package}")
    return Path(spec.origin).parent.parent
