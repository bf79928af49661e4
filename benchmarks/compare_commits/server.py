"""The process of one commit: started by side.py, through alone.py, with that commit's packages first on its path.

Reads and answers lines of JSON. First `{"folder": ...}`, where it writes its stores. Then for each
`{"strategy": ...}` it forks a process, which answers with what it loaded and how long that took, takes the turns
`{"figure", "epochs", "cpus"}` that it is asked for, and ends at `{}`. While it waits for a line it costs nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import traceback
from pathlib import Path
from typing import Any

import etl
from benchmarks.cell import Cell
from benchmarks.clock import run_epoch
from benchmarks.compare_commits.work import ETL, IMAGE_SIZE, WALL, WORKS, Work
from benchmarks.fork_ready import make_fork_ready
from benchmarks.stores import write_store
from benchmarks.workload import COMPUTE_THREADS, Data, find_photographs, make_iterator, make_pipeline

# Without a buffer: the forked processes go on reading where this one stopped.
REQUESTS = 0
ANSWERS = 1


def main() -> None:
    """Answer requests until standard input ends."""
    with open(REQUESTS, "rb", buffering=0, closefd=False) as requests:
        try:
            make_fork_ready()
            folder = Path(json.loads(requests.readline())["folder"])
            data = {work: _make_data(work, folder) for work in WORKS.values()}
            _answer({"etl": str(_package_folder("etl")), "presave": str(_package_folder("presave"))})
            while request := json.loads(requests.readline() or "null"):
                work = WORKS[request["strategy"]]
                child = os.fork()
                if child == 0:
                    _serve(work.cell, data[work], requests)
                os.waitpid(child, 0)
        except BaseException:
            _answer({"error": traceback.format_exc()})
            raise


def _serve(cell: Cell, data: Data, requests: Any) -> None:
    """Take turns until the request to end; does not return."""
    try:
        _take_turns(cell, data, requests)
    except BaseException:  # noqa: BLE001 - reported by the other side
        _answer({"error": traceback.format_exc()})
    os._exit(0)  # nothing of the server's is the child's to clean up


def _take_turns(cell: Cell, data: Data, requests: Any) -> None:
    import xxhash

    from benchmarks.measure import digesting
    from benchmarks.workload import Training

    # With pages given back and mapped again in every step, the time of the same code differed from process to process
    # by 5%, for as long as the process lived.
    with (
        etl.runtime.HeapPolicy("retain"),
        etl.runtime.ThreadPolicy(COMPUTE_THREADS),
        make_iterator(cell, data) as iterator,
    ):
        training = Training(cell, data)
        digest = xxhash.xxh3_128()
        first = run_epoch(iterator, digesting(training, digest))
        computes = {ETL: None, WALL: training}
        seconds = {ETL: run_epoch(iterator, None).wall, WALL: first.wall}
        _answer({"digest": digest.hexdigest(), "samples": first.samples, "seconds": seconds})
        while request := json.loads(requests.readline() or "null"):
            compute = computes[request["figure"]]
            _settle_on(request["cpus"])
            times = []
            for _ in range(request["epochs"]):
                waited = _waited_seconds()
                wall = run_epoch(iterator, compute).wall
                # In an asynchronous strategy a thread may also wait for a CPU that another of its own has.
                times.append(wall if cell.is_async else wall - (_waited_seconds() - waited))
            _answer({"seconds": times})
        _answer({"ended": True})


def _make_data(work: Work, folder: Path) -> Data:
    photographs = find_photographs(work.photographs)
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
