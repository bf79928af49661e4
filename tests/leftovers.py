"""What loading may leave behind in a process: threads, child processes, descriptors, shared memory."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from dataclasses import dataclass

import psutil

from tests.worker_processes import LIMIT_SECONDS, descriptors, is_running, mapped_names

# The server process that forks workers is kept for others, and so are its pipes and that of the resource tracker.
KEPT_DESCRIPTORS = 3


def prefetch_threads() -> list[threading.Thread]:
    """The threads that load ahead now."""
    return [thread for thread in threading.enumerate() if thread.name == "etl-prefetch"]


def wait_for_prefetch_threads() -> None:
    """Wait until all that they may load is loaded."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while prefetch_threads():  # one that reads in all epochs does not end, but has another name between them
        assert time.monotonic() < deadline
        time.sleep(0.005)


@dataclass(frozen=True)
class Leftovers:
    """What there is in this process."""

    descriptors: int
    threads: int
    workers: int
    zombies: int
    mapped: frozenset[str]

    @classmethod
    def now(cls) -> Leftovers:
        gc.collect()
        workers = [each for each in multiprocessing.active_children() if each.name == "etl-worker"]
        below = psutil.Process().children(recursive=True)
        zombies = sum(each.is_running() and not is_running(each.pid) for each in below)
        threads = sum(each.name.startswith("etl-") for each in threading.enumerate())
        return cls(descriptors(), threads, len(workers), zombies, frozenset(mapped_names({psutil.Process().pid})))

    def assert_the_same(self) -> None:
        """Wait until no more is there than this."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while self.exceeded_by(now := Leftovers.now()):
            assert time.monotonic() < deadline, f"{now} are left, before there were {self}"
            time.sleep(0.02)

    def exceeded_by(self, other: Leftovers) -> bool:
        return (
            other.descriptors > self.descriptors + KEPT_DESCRIPTORS
            or other.threads > self.threads
            or other.workers > self.workers
            or other.zombies > self.zombies
            or not other.mapped <= self.mapped
        )
