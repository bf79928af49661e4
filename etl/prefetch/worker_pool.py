"""The worker processes of one iterator: started once, sent tasks, and ended with it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from functools import partial
from multiprocessing.connection import wait

from etl.loading.batch_plan import Loader
from etl.prefetch.shared_memory import SharedMemory, SharedObject
from etl.prefetch.worker_main import describe
from etl.prefetch.worker_process import END_PATIENCE_SECONDS, Worker
from presave import forks, interrupts
from presave.random_seeds import draw_base_seeds

# Seconds until a worker that has not started counts as hanging. It imports what the program imports.
START_LIMIT_SECONDS = 120
# Each worker's cursor is in a cache line of its own.
CURSOR_NBYTES = 64


class WorkerPool:
    """Worker processes, each with a copy of a loader. The constructor starts none.

    Parameters
    ----------
    key : tuple
        Identifies the iterator among those with equal `seeds`, such as those of other ranks.

    Attributes
    ----------
    seeds : BaseSeeds
        Drawn from the generators of this process: seeds the global random generators of the workers.
    lease : Lock
        Held by the thread that sends to the workers and receives from them.
    """

    def __init__(self, count: int, start_method: str, key: tuple[object, ...]) -> None:
        self._count = count
        self.seeds, self.key = draw_base_seeds(), key
        self._start_method = start_method
        self._owner = os.getpid()
        self._resources = contextlib.ExitStack()
        self._is_closed = False
        # Held while the pool is opened or closed. Re-entrant, because the collector may close it anywhere.
        self._lock = threading.RLock()
        self.lease = threading.Lock()
        self.workers: list[Worker] = []

    def open(self, loader: Loader) -> None:
        """Start the processes, without waiting until they run. The caller must have arranged for `close`.

        Raises `ValueError` if `loader` cannot be pickled, and `OSError` if descriptors or memory run out.
        """
        interrupts.shielded(partial(self._open, loader))

    def _open(self, loader: Loader) -> None:
        # Descriptors may run out at any of these calls.
        with self._lock, contextlib.ExitStack() as stack:
            if self._is_closed:  # after an interrupt
                return
            try:
                self._loader = SharedObject(loader)
            except (OSError, MemoryError):
                raise
            except Exception as error:
                raise ValueError(
                    f"the source and the stages cannot be sent to worker processes ({describe(error)}); remove open "
                    "files, locks and the like from them, or use workers='thread'"
                ) from error
            stack.callback(self._loader.close)
            self.memory = SharedMemory("etl-batches")
            stack.callback(self.memory.close)
            self._cursors = self.memory.allocate(self._count * CURSOR_NBYTES).reshape(self._count, CURSOR_NBYTES)
            stack.callback(self._end_workers)
            for place in range(self._count):
                self.workers.append(self._make_worker(place))
            self._start(self.workers)
            self._resources = stack.pop_all()
            _POOLS.add(self)

    @property
    def alive(self) -> list[Worker]:
        """The workers that can be sent tasks."""
        return [worker for worker in self.workers if not worker.is_lost]

    @property
    def is_starting(self) -> bool:
        """True while some workers have not reported that they have started, up to `START_LIMIT_SECONDS`."""
        late = time.monotonic() > self._started + START_LIMIT_SECONDS
        return not late and not all(worker.is_ready for worker in self.alive)

    def wait(self, bell: int) -> tuple[list[Worker], list[Worker]]:
        """Wait until a worker sends a message or ends, or the eventfd `bell` is written to.

        Return the workers that have sent a message, and those that have ended without one.
        """
        alive = self.alive
        waited_for = (each for worker in alive for each in (worker.connection, worker.sentinel) if each is not None)
        ready = set(wait([bell, *waited_for]))
        heard = [worker for worker in alive if worker.connection in ready]
        silent = [worker for worker in alive if worker.sentinel in ready and worker not in heard]
        # The fork server also writes to a worker's sentinel when it has forked the worker.
        ended = [worker for worker in silent if worker.has_ended()]
        return heard, ended

    def renew(self, workers: list[Worker]) -> list[Worker]:
        """End `workers`, start others in their places, and return these."""
        places = [self.workers.index(worker) for worker in workers]
        for worker in workers:
            worker.end(0)
        for place in places:
            self.workers[place] = self._make_worker(place)
        renewed = [self.workers[place] for place in places]
        if renewed:
            self._start(renewed)
        return renewed

    def check_owner(self) -> None:
        """Raise `RuntimeError` in a fork of the process that made this pool."""
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"the iterator's worker processes belong to process {self._owner}, of which this process is a fork; "
                "make a new iterator here"
            )

    def close(self) -> None:
        """End all processes; kill those that do not finish their record within `END_PATIENCE_SECONDS`."""
        if os.getpid() != self._owner:  # in a fork
            return
        self._is_closed = True
        interrupts.shielded(self._close)

    def _close(self) -> None:
        with self._lock:
            self._resources.close()
            _POOLS.discard(self)

    def _end_workers(self) -> None:
        for worker in self.workers:
            worker.connection.close()
        deadline = time.monotonic() + END_PATIENCE_SECONDS
        for worker in self.workers:
            worker.end(max(0.0, deadline - time.monotonic()) if worker.is_ready else 0)

    def _make_worker(self, place: int) -> Worker:
        return Worker(self._start_method, self.memory, self._cursors[place], self._loader)

    def _start(self, workers: list[Worker]) -> None:
        self._started = time.monotonic()
        # A background thread may do this, to replace a lost worker.
        with forks.held_off():
            for worker in workers:
                worker.start()


# The open pools that belong to this process.
_POOLS: set[WorkerPool] = set()


def _after_fork_in_child() -> None:
    # Workers end when their connections are closed, so a fork must not keep them open.
    for pool in _POOLS:
        for worker in pool.workers:
            worker.leave_to_parent()
    _POOLS.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
