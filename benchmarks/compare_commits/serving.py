"""What the process of one commit does.

It reads and answers lines of JSON. First `{"folder": ..., "strategies": [...]}`, where it writes the stores that these
read. Then for each `{"strategy": ...}` it forks a process, which answers with what it loaded and how long that took,
takes the turns `{"figure", "epochs", "cpus"}` that it is asked for, and ends at `{}`. While it waits for a line it
costs nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

import etl
from benchmarks.cell import Cell
from benchmarks.clock import as_bytes, run_epoch
from benchmarks.compare_commits.compute import Layer
from benchmarks.compare_commits.placement import draw_gaps
from benchmarks.compare_commits.work import ETL, IMAGE_SIZE, PHOTOGRAPHS, WALL, WORKS, Work
from benchmarks.fork_ready import check_no_threads, load_kernels
from benchmarks.stores import write_store
from benchmarks.workload import COMPUTE_THREADS, Data, find_photographs, make_iterator, make_pipeline

# Without a buffer: the forked processes go on reading where this one stopped.
REQUESTS = 0
ANSWERS = 1
# Of how long a thread has waited, twice; usually a tenth of that.
MOST_READING_SECONDS = 0.0005


def serve() -> None:
    """Answer requests until standard input ends."""
    with open(REQUESTS, "rb", buffering=0, closefd=False) as requests:
        try:
            load_kernels()
            request = json.loads(requests.readline())
            data = {name: _make_data(WORKS[name], Path(request["folder"])) for name in request["strategies"]}
            check_no_threads()
            _answer({"etl": str(_package_folder("etl")), "presave": str(_package_folder("presave"))})
            while request := json.loads(requests.readline() or "null"):
                name = request["strategy"]
                child = os.fork()
                if child == 0:
                    _serve_turns(WORKS[name].cell, data[name], requests)
                os.waitpid(child, 0)
        except BaseException:
            _answer({"error": traceback.format_exc()})
            raise


def _serve_turns(cell: Cell, data: Data, requests: Any) -> None:
    """Take turns until the request to end; does not return."""
    try:
        _take_turns(cell, data, requests)
    except BaseException:  # noqa: BLE001 - reported by the other side
        _answer({"error": traceback.format_exc()})
    os._exit(0)  # nothing of the server's is the child's to clean up


def _take_turns(cell: Cell, data: Data, requests: Any) -> None:
    # Pages that are given back and mapped again in every step cost more or less from process to process.
    with (
        etl.runtime.HeapPolicy("retain"),
        etl.runtime.ThreadPolicy(COMPUTE_THREADS),
        make_iterator(cell, data) as iterator,
    ):
        layer = Layer()
        digest = xxhash.xxh3_128()
        samples = run_epoch(iterator, lambda batch: _digest(batch, digest)).samples
        computes: dict[str, Callable[[Any], None] | None] = {ETL: None, WALL: layer}
        run_epoch(iterator, layer)
        seconds = {figure: run_epoch(iterator, compute).wall for figure, compute in computes.items()}
        _answer({"digest": digest.hexdigest(), "samples": samples, "seconds": seconds})
        while request := json.loads(requests.readline() or "null"):
            _settle_on(request["cpus"])
            gaps = draw_gaps()
            _answer({"seconds": _mean_epoch(iterator, computes[request["figure"]], request["epochs"], cell.is_async)})
            del gaps
        _answer({"ended": True})


def _mean_epoch(iterator: Any, compute: Callable[[Any], None] | None, epochs: int, is_async: bool) -> float:
    """Seconds of an epoch, without those in which something else had the CPU of this thread: in an asynchronous
    strategy that may have been a thread of its own, so there they stay.
    """
    while True:
        started = time.perf_counter()
        waited = _waited_seconds()
        began = time.perf_counter()
        wall = sum(run_epoch(iterator, compute).wall for _ in range(epochs))
        ended = time.perf_counter()
        waited = _waited_seconds() - waited
        outside = began - started + time.perf_counter() - ended
        if is_async:
            return wall / epochs
        # A wait while the waits were read is in one of the two, and not in the other.
        if outside < MOST_READING_SECONDS and waited < wall:
            return (wall - waited) / epochs


def _digest(batch: Any, digest: Any) -> None:
    for array in batch.arrays():
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(as_bytes(np.asarray(array)).data)


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


def _settle_on(cpus: list[int]) -> None:
    """Run on the first of `cpus`, from which the system may move threads to the others: left alone, it keeps one side
    beside some other busy process for seconds, and not the other side.
    """
    os.sched_setaffinity(0, cpus[:1])
    os.sched_setaffinity(0, cpus)


def _waited_seconds() -> float:
    """For how long this thread has been ready to run while something else had the CPU."""
    return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) * 1e-9


def _answer(answer: dict[str, Any]) -> None:
    os.write(ANSWERS, json.dumps(answer).encode() + b"\n")
