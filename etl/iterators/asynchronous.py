"""Strategy `async`: threads or processes load the next batches while the caller computes on this one."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import numpy as np

from etl.arguments import whole_number
from etl.iterators.ahead import AheadIterator
from etl.iterators.indexed import EpochIterator
from etl.iterators.iterator import BatchIterator
from etl.iterators.sampler import Uneven
from etl.loading.batch import Batch
from etl.loading.batch_plan import Loading, State, Where, nowhere
from etl.loading.buffer_pool import Workspaces
from etl.loading.skipped import Skipped
from etl.prefetch.prefetcher import Crew
from etl.prefetch.processes import ProcessCrew
from etl.prefetch.start import START_METHODS
from etl.prefetch.threads import ThreadCrew
from etl.prefetch.worker_pool import WorkerPool
from etl.runtime.boundaries import batch_boundary
from etl.runtime.thread_policy import default_loader_threads


class AsyncIterator(AheadIterator):
    """Wraps any iterator and yields the same batches in the same order, loaded up to `prefetch_size` ahead.

    At most `prefetch_size` batches are finished or being made beside the one the caller holds; 0 is the plain
    iterator. `threads` share the records of each batch (by default those that a `ThreadPolicy` in force gives to
    loading, or as many as there are CPUs for this process, less those that it gives to compute); an iterator of the
    caller's own is advanced by one thread.
    With `memory_budget`, bytes for all batches, the caller's included, as many are loaded ahead as have room in it, by
    the size of an epoch's first.
    An exception while loading is raised at the batch it belongs to, and after `timeout` seconds of waiting for a batch
    an error that names the record that a thread is at. Leaving the loop ends the threads.

    `workers="process"` is for sources and stages in Python that hold the interpreter's lock: `processes` share the
    records (as many as `threads` by default), and write them in memory that they share with this one, which is what
    batches are made of. This object starts them, each with a copy of the source and the stages as they are then, and
    does not wait until they run: what they import, they import while the caller does something else. They end with this
    object; `start_method` "forkserver" or "spawn" is how they start. One that is killed is an error at its batch that
    names the record it was at, as is one that hangs, which is killed after `timeout`; the next epoch has others.

    This process may fork at any time, as a `DataLoader` with workers does. A fork by another thread waits until the
    threads that load have finished the record they are at, and until a kernel that is being loaded is there, so that
    the child inherits no lock that is held. A record that takes longer than five seconds, a kernel that takes longer
    than a minute, are not waited for, which is a `RuntimeWarning`. The child may drop an epoch that was begun here, but
    not go on with it. It may begin its own with threads, but not with these processes; what it must not do is a
    `RuntimeError`. It may make iterators of its own, and its end leaves these processes alone.

    Raises `ValueError` for an iterator that must not be wrapped, one of the caller's own with processes or a budget, a
    source or stage that cannot be pickled, and processes on another system than Linux; and says why.
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
        # Weak, so that the threads end when the caller leaves its loop and nobody else holds the epoch.
        self._running: weakref.ref[_Epoch] | None = None
        self._pool: WorkerPool | None = None
        # None: those of the wrapped iterator.
        self._workspaces: Workspaces | None = None
        if workers == "process":
            self._check_processes()
        if memory_budget is not None and not isinstance(iterator, EpochIterator):
            raise ValueError(
                f"memory_budget needs to know how large batches are, which {type(iterator).__name__} does not tell; "
                "use prefetch_size"
            )
        if self.processes and isinstance(iterator, EpochIterator):
            self._pool = WorkerPool(iterator.loader, self.processes, start_method)
            self._workspaces = Workspaces(iterator.reuse, allocate=self._pool.memory.allocate)
            weakref.finalize(self, self._pool.close)

    @property
    def prefetch_size(self) -> int:
        """Batches loaded ahead; 0 is off."""
        return self._prefetch_size

    @property
    def threads(self) -> int:
        """Threads that load; 0 where the caller's own does, or processes do."""
        if self._prefetch_size == 0 or self._workers == "process":
            return 0
        if not isinstance(self._iterator, EpochIterator):
            return 1
        return self._threads or default_loader_threads()

    @property
    def processes(self) -> int:
        """Processes that load; 0 where threads do."""
        if self._prefetch_size == 0 or self._workers == "thread":
            return 0
        return self._processes or default_loader_threads()

    @property
    def epoch(self) -> int:
        """The epoch that is, or is next, iterated."""
        return super().epoch if self._prefetch_size else self._iterator.epoch

    def __iter__(self) -> Iterator[Batch]:
        if self._prefetch_size == 0:
            return iter(self._iterator)
        self._end_epoch()
        state = self._rewind()
        where = nowhere()
        loadings = self._begin_loadings(where)
        prefetch_size = self._prefetch_size
        if self._memory_budget is not None:
            prefetch_size, loadings = _within(self._memory_budget, loadings)
        if self._workspaces is not None:
            self._workspaces.most_free = prefetch_size + 2
        elif isinstance(self._iterator, EpochIterator):
            self._iterator.hold_batches(prefetch_size + 1)
        self._state, self._read_ahead = state, True
        # Nothing of this object: the crew, which its threads hold, must not keep it alive.
        error_at = partial(_error_at, self._iterator, where)
        crew: Crew = (
            ThreadCrew(loadings, prefetch_size, error_at, self.threads)
            if self._pool is None
            else ProcessCrew(loadings, prefetch_size, error_at, self._pool)
        )
        epoch = _Epoch(self, crew, self._timeout)
        self._running = weakref.ref(epoch)
        return epoch

    def allocate_with(self, allocate: Callable[[int], np.ndarray]) -> None:
        """Have threads make batches in memory from `allocate(nbytes)`; processes have memory of their own."""
        if isinstance(self._iterator, EpochIterator):
            self._iterator.allocate_with(allocate)

    def state_dict(self) -> State:
        """Where this iterator stands, after the last batch that was handed out, not the last that was loaded."""
        return super().state_dict() if self._prefetch_size else self._iterator.state_dict()

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> AsyncIterator:
        """Return an asynchronous iterator over the part of each epoch that belongs to `rank`; see
        `BatchIterator.shard`.
        """
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
        """End the threads or processes and close the wrapped iterator."""
        super().close()
        if self._pool is not None:
            self._pool.close()
        if self._workspaces is not None:
            self._workspaces.clear()

    def _check_processes(self) -> None:
        if not isinstance(self._iterator, EpochIterator):
            raise ValueError(
                f"workers='process' needs an iterator whose batches can be made in parts, such as RawIterator and "
                f"PresavedIterator; {type(self._iterator).__name__} makes them itself, which one thread can do: use "
                "workers='thread'"
            )
        if sys.platform != "linux":
            raise ValueError("workers='process' needs Linux, for memory without a name; use workers='thread'")

    def _begin_loadings(self, where: Where) -> Iterator[tuple[Loading, State]]:
        iterator = self._iterator
        if not isinstance(iterator, EpochIterator):
            batches = iter(iterator)
            return ((_WholeBatch(batch), iterator.state_dict()) for batch in batches)
        iterator.begin_epoch()
        epoch = iterator.epoch
        loadings = iterator.loadings(self.threads or self.processes, self._workspaces, where)
        return ((loading, iterator.state_at(epoch, after)) for loading, after in loadings)

    def _end_epoch(self) -> None:
        epoch = self._running() if self._running is not None else None
        if epoch is not None:
            epoch.close()
        self._running = None

    def _fill(self, loading: Loading) -> Batch | None:
        """Return the batch that takes the place of one whose records were all left out, if there is to be one."""
        return self._iterator.fill(loading) if isinstance(self._iterator, EpochIterator) else None

    def _handed_out(self, state: State) -> None:
        self._state = state

    def _ended(self, skipped: Skipped) -> None:
        """The last batch was handed out."""
        try:
            if isinstance(self._iterator, EpochIterator):
                self._iterator.end_epoch(skipped)
        finally:  # warnings may be errors
            self._stands_with_wrapped()


class _Epoch(Iterator[Batch]):
    """One epoch in progress."""

    def __init__(self, owner: AsyncIterator, crew: Crew, timeout: float | None) -> None:
        self._owner = owner
        self._crew = crew
        self._timeout = timeout
        self._skipped = Skipped()
        # Runs when the caller drops the epoch, and at the latest before the interpreter goes away.
        self._finalizer = weakref.finalize(self, crew.stop)
        self._is_over = False

    def __next__(self) -> Batch:
        if self._is_over:
            raise StopIteration
        batch_boundary()
        try:
            while (job := self._crew.take(self._timeout)) is not None:
                batch = job.batch if job.batch is not None else self._owner._fill(job.loading)
                self._skipped.add(job.loading)
                self._owner._handed_out(job.state)
                if batch is not None:
                    return batch
        except BaseException:
            self._is_over = not self._crew.is_stopped
            self.close()
            raise
        self._is_over = True
        self.close()
        self._owner._ended(self._skipped)
        raise StopIteration

    def close(self) -> None:
        """Stop loading and wait for the threads; at most the records they are at are finished first."""
        self._finalizer()


class _WholeBatch(Loading):
    """A batch that another iterator has made already."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.task_records = 1
        self.skipped = {}

    def __len__(self) -> int:
        return 0

    def finish(self) -> Batch:
        return self._batch


def _within(budget: int, loadings: Iterator[tuple[Loading, State]]) -> tuple[int, Iterator[tuple[Loading, State]]]:
    """How many batches to load ahead so that they and the caller's have room in `budget` bytes, and all `loadings`."""
    first = next(loadings, None)
    if first is None:
        return 1, loadings
    nbytes = max(1, sum(array.nbytes for array in first[0].arrays.values()))
    if budget < 2 * nbytes:
        raise ValueError(
            f"memory_budget is {budget:,} bytes and a batch {nbytes:,}; it must hold two, the caller's and the next"
        )
    return budget // nbytes - 1, chain([first], loadings)


def _error_at(iterator: BatchIterator, where: Where, cause: BaseException) -> BaseException:
    return iterator.error_at(where, cause) if isinstance(iterator, EpochIterator) else cause
