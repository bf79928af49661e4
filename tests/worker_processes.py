"""Records for worker processes, and what is left of these."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import etl

NOTHING = etl.Pipeline([])
LIMIT_SECONDS = 60
HELD_NBYTES = 3 * 64 * 64 * 4


class Made:
    """`count` records of uint8 features with shape (8, 10, 3), told by their number; picklable and small."""

    def __init__(self, count: int = 22) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels = np.random.default_rng(index).integers(0, 255, (8, 10, 3), np.uint8)
        return {"features": pixels, "label": index}


class Workers(Made):
    """Records that tell which process has made them, and are large enough for several pages each."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": np.full((3, 64, 64), index, np.float32), "label": os.getpid()}


def make_async(records: Any, batch_size: int = 4, prefetch_size: int = 2, **options: Any) -> etl.AsyncIterator:
    iterator = etl.RawIterator(records, NOTHING, batch_size, **options)
    return etl.AsyncIterator(iterator, prefetch_size, workers="process", processes=2)


def workers_of(batches: Iterator[etl.Batch]) -> set[int]:
    """The numbers of the processes that made `batches` of `Workers`."""
    return {int(pid) for batch in batches for pid in batch.labels} - {os.getpid()}


def assert_ended(pids: set[int]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, f"still there: {[pid for pid in pids if is_running(pid)]}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def mapped_names(pids: set[int]) -> set[str]:
    """The named shared memory that any of the processes has mapped, which would be left if all were killed."""
    maps = [Path(f"/proc/{pid}/maps") for pid in pids if is_running(pid)]
    return {line.split()[-1] for each in maps for line in each.read_text().splitlines() if " /dev/shm/" in line}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
