"""Strategy `async`: threads or processes load the next batches while the caller computes on this one."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from etl.arguments import whole_number
from etl.iterators.ahead import AheadIterator
from etl.iterators.indexed import IndexedIterator
from etl.iterators.iterator import BatchIterator
from etl.iterators.prefetchable import Prefetchable, WholeBatches
from etl.loading.batch import Batch
from etl.loading.batch_plan import AnyPlan, BatchPlan, SkippedRecords, State
from etl.loading.buffer_pool import BufferPool
from etl.loading.sampler import Uneven
from etl.prefetch.prefetcher import Prefetcher
from etl.prefetch.processes import ProcessPrefetcher
from etl.prefetch.start import START_METHODS
from etl.prefetch.threads import ThreadPrefetcher
from etl.prefetch.worker_pool import WorkerPool
from etl.runtime.boundaries import batch_boundary
from etl.runtime.thread_policy import default_loader_threads
from etl.stages.cursor import ThreadCursor


class AsyncIterator(AheadIterator):
    """Wraps any iterator and yields the same batches in the same order, loaded ahead of the caller.

    An exception while loading is raised at the batch it belongs to. Leaving the loop ends the threads.

    Parameters
    ----------
    iterator : BatchIterator
        The iterator to wrap. One of the caller's own is advanced by a single thread.
    prefetch_size : int
        Batches that are finished or being made besides the one that the caller holds; 0 is the plain iterator.
    workers : {"thread", "process"}
        Processes are for sources and stages in Python that hold the interpreter's lock.
    threads : int, optional
        Threads that share the records of each batch. By default those that a `ThreadPolicy` in force gives to loading;
        without one, as many as there are CPUs for this process.
    processes : int, optional
        Processes that share the records of each batch; by default as many as `threads`.
    start_method : {"forkserver", "spawn"}
        How processes are started.
    timeout : float, optional
        Seconds to wait for a batch. After them it is an error that names the record that a worker is at.
    memory_budget : int, optional
        Bytes for all batches, the caller's included. As many are loaded ahead as have room in it, by the size of the
        first of an epoch.

    Raises
    ------
    ValueError
        If the iterator must not be wrapped, or is one of the caller's own and there are processes or a budget; if a
        source or stage cannot be pickled; for processes on another system than Linux.

    Notes
    -----
    Processes are started by the constructor and end with this object. Each has a copy of the source and the stages as
    they were then, and writes records into memory that it shares with this process. The constructor does not wait until
    they run: they import what they need meanwhile. A process that is killed is an error at its batch that names the
    record it was at. So is one that hangs, which is killed after `timeout`. The next epoch has others.

    This process may fork at any time, as a `DataLoader` with workers does. A fork by another thread waits until the
    loading threads have finished the record they are at, and until a kernel that is being loaded is there, so that the
    child inherits no lock that is held. It does not wait longer than five seconds for a record and a minute for a
    kernel: then there is a `RuntimeWarning`. The child may drop an epoch that was begun here, but not continue it. It
    may begin one of its own with threads, but not with these processes; doing so is a `RuntimeError`. It may make
    iterators of its own. Its end does not affect these processes.
    """

    async_unsupported_reason = "it is asynchronous already"

    def __init__(
        self,
        iterator: BatchIterator,
        prefetch_size: int = 2,
        *,
        workers: str = "thread",
        threads: int | None = None,
        processes: int | None = None,
        start_method: str = "forkserver",
        timeout: float | None = None,
        memory_budget: int | None = None,
    ) -> None:
        self._prefetch_size = whole_number("prefetch_size", prefetch_size, least=0)
        if workers not in ("thread", "process"):
            raise ValueError(f"workers must be 'thread' or 'process', not {workers!r}")
        if start_method not in START_METHODS:
            raise ValueError(f"start_method must be {' or '.join(map(repr, START_METHODS))}, not {start_method!r}")
        if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
            raise ValueError(f"timeout must be a number of seconds above 0, or None, not {timeout!r}")
        if not iterator.async_supported:
            reason = getattr(iterator, "async_unsupported_reason", "its async_supported is False")
            raise ValueError(f"{type(iterator).__name__} must not be wrapped in AsyncIterator: {reason}")
        self._threads = None if threads is None else whole_number("threads", threads, least=1)
        self._processes = None if processes is None else whole_number("processes", processes, least=1)
        self._workers = workers
        self._start_method = start_method
        self._timeout = timeout
        self._memory_budget = None if memory_budget is None else whole_number("memory_budget", memory_budget, least=1)
        super().__init__(iterator)
        self._source: Prefetchable = iterator if isinstance(iterator, IndexedIterator) else WholeBatches(iterator)
        # The end of the last batch that was handed out; None if `_state` is the position.
        self._after: Any = None
        # Weak, so that the threads end when the caller leaves its loop and nothing else holds the epoch.
        self._running: weakref.ref[_Epoch] | None = None
        self._worker_pool: WorkerPool | None = None
        # The memory that worker processes share; None: that of the wrapped iterator.
        self._buffers: BufferPool | None = None
        loader = self._source.loader
        if workers == "process":
            self._check_processes()
        if memory_budget is not None and loader is None:
            raise ValueError(
                f"memory_budget needs to know how large batches are, which {type(iterator).__name__} does not tell; "
                "use prefetch_size"
            )
        if self.processes and loader is not None:
            self._worker_pool = WorkerPool(loader, self.processes, start_method)
            self._buffers = BufferPool(self._source.reuse, allocate=self._worker_pool.memory.allocate)
            weakref.finalize(self, self._worker_pool.close)

    @property
    def prefetch_size(self) -> int:
        """Batches loaded ahead; 0 is off."""
        return self._prefetch_size

    @property
    def threads(self) -> int:
        """Threads that load; 0 if the caller's own does, or processes do."""
        if self._prefetch_size == 0 or self._workers == "process":
            return 0
        if self._source.loader is None:
            return 1
        return self._threads or default_loader_threads()

    @property
    def processes(self) -> int:
        """Processes that load; 0 if threads do."""
        if self._prefetch_size == 0 or self._workers == "thread":
            return 0
        return self._processes or default_loader_threads()

    @property
    def epoch(self) -> int:
        return super().epoch if self._prefetch_size else self._iterator.epoch

    def __iter__(self) -> Iterator[Batch]:
        if self._prefetch_size == 0:
            return iter(self._iterator)
        self._end_epoch()
        state = self._rewind()
        cursor = ThreadCursor()
        plans = self._source.plans(cursor, self._buffers)
        prefetch_size = self._prefetch_size
        if self._memory_budget is not None:
            prefetch_size, plans = _fit_into(self._memory_budget, plans)
        if self._buffers is not None:
            self._buffers.max_free = prefetch_size + 2
        else:
            self._source.hold_batches(prefetch_size + 1)
        self._state, self._after, self._has_read_ahead = state, None, True
        # Nothing of this object: the prefetcher, which its threads hold, must not keep it alive.
        name_error = partial(self._source.name_error, cursor)
        prefetcher: Prefetcher = (
            ThreadPrefetcher(plans, prefetch_size, name_error, self.threads)
            if self._worker_pool is None
            else ProcessPrefetcher(plans, prefetch_size, name_error, self._worker_pool)
        )
        epoch = _Epoch(self, prefetcher, self._timeout)
        self._running = weakref.ref(epoch)
        return epoch

    def allocate_with(self, allocate: Callable[[int], np.ndarray]) -> None:
        """Have threads make batches in memory from `allocate(nbytes)`; processes have memory of their own."""
        self._source.allocate_with(allocate)

    def state_dict(self) -> State:
        if self._prefetch_size == 0:
            return self._iterator.state_dict()
        return super().state_dict() if self._after is None else self._source.state_after(self._after)

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> AsyncIterator:
        part = self._iterator.shard(rank, world_size, uneven)
        part.set_epoch(self.epoch)  # the wrapped iterator may have read ahead into the next one
        return AsyncIterator(
            part,
            self._prefetch_size,
            workers=self._workers,
            threads=self._threads,
            processes=self._processes,
            start_method=self._start_method,
            timeout=self._timeout,
            memory_budget=self._memory_budget,
        )

    def close(self) -> None:
        super().close()
        if self._worker_pool is not None:
            self._worker_pool.close()
        if self._buffers is not None:
            self._buffers.clear()

    def _check_processes(self) -> None:
        if self._source.loader is None:
            raise ValueError(
                f"workers='process' needs an iterator whose batches can be made in parts, such as RawIterator and "
                f"PresavedIterator; {type(self._iterator).__name__} makes them itself, which one thread can do: use "
                "workers='thread'"
            )
        if sys.platform != "linux":
            raise ValueError("workers='process' needs Linux, for memory without a name; use workers='thread'")

    def _end_epoch(self) -> None:
        epoch = self._running() if self._running is not None else None
        if epoch is not None:
            epoch.close()
        self._running = None

    def _align(self) -> None:
        super()._align()
        self._after = None

    def _end_whole_epoch(self, skipped: SkippedRecords) -> None:
        """Go on to the next epoch: the last batch was handed out."""
        try:
            self._source.end_epoch(skipped)
        finally:  # warnings may be errors
            self._align()


class _Epoch(Iterator[Batch]):
    """One epoch in progress."""

    def __init__(self, owner: AsyncIterator, prefetcher: Prefetcher, timeout: float | None) -> None:
        self._owner = owner
        self._prefetcher = prefetcher
        self._timeout = timeout
        self._skipped = SkippedRecords()
        # Runs when the caller drops the epoch, and at the latest before the interpreter goes away.
        self._finalizer = weakref.finalize(self, prefetcher.stop)
        self._is_over = False

    def __next__(self) -> Batch:
        if self._is_over:
            raise StopIteration
        batch_boundary()
        owner = self._owner
        try:
            while (plan := self._prefetcher.take(self._timeout)) is not None:
                batch: Batch | None = plan.batch
                if plan.skipped:
                    self._skipped.add(plan)
                if batch is None:
                    batch = owner._source.fill(plan)
                owner._after = plan.after
                if batch is not None:
                    return batch
        except BaseException:
            self._is_over = not self._prefetcher.is_stopped
            self.close()
            raise
        self._is_over = True
        self.close()
        owner._end_whole_epoch(self._skipped)
        raise StopIteration

    def close(self) -> None:
        """Stop loading and wait for the threads; at most the records they are at are finished first."""
        self._finalizer()


def _fit_into(budget: int, plans: Iterator[AnyPlan]) -> tuple[int, Iterator[AnyPlan]]:
    """Return how many batches to load ahead, so that they and the caller's have room in `budget` bytes, and `plans`."""
    first = next(plans, None)
    if not isinstance(first, BatchPlan):
        return 1, plans
    nbytes = max(1, sum(array.nbytes for array in first.arrays.values()))
    if budget < 2 * nbytes:
        raise ValueError(
            f"memory_budget is {budget:,} bytes and a batch {nbytes:,}; it must hold two, the caller's and the next"
        )
    return budget // nbytes - 1, chain([first], plans)
