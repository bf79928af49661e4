"""A program that goes through epochs with every strategy at once, and prints after each what it holds, as JSON.

`python epochs.py EPOCHS FOLDER LEAKING [STRATEGY ...]`: the strategy LEAKING leaks a batch an epoch, "none" does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import etl
import presave
from presave.mapped_rows import COMPILED

RECORDS, BATCH_SIZE = 96, 32
SHAPE = (3, 80, 80)  # 77 KB as float32, so that a batch is 2.5 MB
# Kernels are loaded in the background, in worker processes, too.
MAX_WARMING_EPOCHS = 60
STEADY_SHARE, STEADY_EPOCHS = 0.0005, 4
WITH_PROCESSES = ("raw", "presaved npy")


class Pixels:
    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": np.random.default_rng(index).integers(0, 255, SHAPE, np.uint8), "label": index}


def make_iterators(folder: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """The strategies `names`, or every one."""
    cast = etl.Pipeline([etl.stages.Cast("float32")])
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True}
    plain: dict[str, Any] = {"raw": etl.RawIterator(Pixels(), cast, **options)}
    for kind in presave.formats():
        presave.write(folder / kind, etl.records(Pixels(), cast), format=kind).close()
        store = presave.open_store(folder / kind, trusted=True)
        plain[f"presaved {kind}"] = etl.PresavedIterator(store, etl.Pipeline([]), **options)
    made = dict(plain)
    for name, each in plain.items():
        if not names or f"async {name}" in names:
            made[f"async {name}"] = etl.AsyncIterator(each.shard(0, 1), threads=2)
        if not names and name in WITH_PROCESSES:
            made[f"process {name}"] = etl.AsyncIterator(each.shard(0, 1), workers="process", processes=1)
    return {name: made[name] for name in names or made}


def own_nbytes(pid: int) -> int:
    """Memory of no file, each page by the share that this process has of it; that of files others may share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def open_descriptors(process: psutil.Process) -> int:
    """The least of a few looks, since a worker may be reading a file at one of them."""
    looks = []
    for _ in range(3):
        looks.append(process.num_fds())
        time.sleep(0.005)
    return min(looks)


def held() -> dict[str, int]:
    """What this process and those below it hold: its own memory in bytes, descriptors, threads."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    found = []
    for each in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            found.append((own_nbytes(each.pid), open_descriptors(each)))
    return {
        "nbytes": sum(nbytes for nbytes, _ in found),
        "descriptors": sum(descriptors for _, descriptors in found),
        "threads": threading.active_count(),
        "processes": len(found),
    }


def go_through(iterators: dict[str, Any], leaking: str, leaked: list[np.ndarray]) -> None:
    """An epoch of each."""
    for name, iterator in iterators.items():
        for batch in iterator:
            kept = batch.features
        if name == leaking:
            leaked.append(kept.copy())


def warm_up(iterators: dict[str, Any]) -> None:
    """Epochs until memory was steady for a while; or as many as may be."""
    steady, before = 0, 0
    for _ in range(MAX_WARMING_EPOCHS):
        go_through(iterators, "none", [])
        now = held()["nbytes"]
        steady = steady + 1 if abs(now - before) < STEADY_SHARE * now else 0
        before = now
        if steady == STEADY_EPOCHS:
            return


def main(epochs: int, folder: Path, leaking: str, *names: str) -> None:
    """Print a line for each epoch after the first ones; of the strategies `names`, or of all."""
    COMPILED.wait()
    iterators = make_iterators(folder, names)
    leaked: list[np.ndarray] = []
    warm_up(iterators)
    for _ in range(epochs):
        go_through(iterators, leaking, leaked)
        print(json.dumps(held()), flush=True)
    for iterator in iterators.values():
        iterator.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
