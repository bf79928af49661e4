"""Records to whose loading happens what a file says: for processes and threads that load."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17]]
RECORDS = 18
HEADROOM_NBYTES = 256 << 20


class Files:
    """18 records, each of a file; what the file `fault` says happens to workers: at which record, and how."""

    name = "photos"

    def __init__(self, fault: Path) -> None:
        self.fault = fault

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": [float(index)], "label": index}

    def describe(self, index: int) -> str:
        return f"{index:02}.jpg"


class Unlucky:
    """A stage to which what `fault` says happens: in worker processes, or in threads where `in_threads`."""

    name = "unlucky"

    def __init__(self, fault: Path, in_threads: bool = False) -> None:
        self.fault = fault
        self.in_threads = in_threads

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        if self.in_threads or multiprocessing.parent_process() is not None:
            with contextlib.suppress(FileNotFoundError):
                number, how = self.fault.read_text().split(maxsplit=1)
                if record["label"] == int(number):
                    self.happen(how)
        return record

    def happen(self, how: str) -> None:
        if how == "raises":
            raise OSError("disk on fire")
        if how == "cannot be pickled":
            raise UnpicklableError("only here", code=3)
        if how == "exits":
            os._exit(7)
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "is stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "runs out of memory":
            run_out_of_memory()
        while self.fault.exists():  # hangs
            time.sleep(0.002)


class UnpicklableError(Exception):
    """An error that is pickled and cannot be unpickled."""

    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)


def run_out_of_memory() -> None:
    """Ask for more than a limit of the system on this process allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM_NBYTES, hard))
    try:
        np.ones(8 * HEADROOM_NBYTES, np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def slowly(record: dict[str, Any]) -> dict[str, Any]:
    """A stage that takes long enough to be met."""
    time.sleep(0.001)
    return record
