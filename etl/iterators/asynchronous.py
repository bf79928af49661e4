"""Strategy `async`: threads or processes load the next batches while the caller computes on the current one."""

from __future__ import annotations

import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etl.arguments import whole_number
from etl.iterators.ahead import AheadIterator
from etl.iterators.indexed import IndexedIterator
from etl.iterators.iterator import BatchIterator
from etl.iterators.whole_batches import WholeBatches
from etl.loading.batch import Batch
from etl.loading.batch_plan import AnyPlan, BatchPlan, SkippedRecords, State
from etl.loading.buffer_pool import BufferPool
from etl.loading.record_loader import RecordLoader
from etl.loading.records import raise_from
from etl.loading.sampler import Uneven
from etl.prefetch.lasting_thread import LastingThread
from etl.prefetch.prefetcher import Prefetcher
from etl.prefetch.threads import ThreadPrefetcher
from etl.runtime.boundaries import batch_boundary
from etl.runtime.thread_policy import default_loader_threads
from etl.sources.reading_at_once import check_threads
from etl.sources.record import RecordError, RecordSequence
from etl.stages.cursor import ThreadCursor
from etl.stages.pipeline import READ
from presave import interrupts
from presave.thread_safety import is_thread_safe

if TYPE_CHECKING:
    from etl.prefetch.worker_pool import WorkerPool

START_METHODS = ("forkserver", "spawn")

READABLE_HERE = (
    "the thread that iterates can read it, so perhaps its file or connection belongs to the thread that opened it: "
    "open one in each thread, with threading.local, or pass prefetch_size=0"
)


class AsyncIterator(AheadIterator):
    """Wraps any iterable of batches and yields the same batches in the same order, loaded ahead of the caller.

    An error while loading is raised at the batch that it belongs to. Leaving the loop ends the threads. Several
    threads may take batches of one epoch.

    Parameters
    ----------
    iterator : BatchIterator or iterable of batches
        An iterator of etl; or any other iterable, such as a torch DataLoader, whose batches may have any form. Such an
        iterable, and a user-defined iterator, is advanced by a single thread. It must not overwrite a batch when the
        next one is requested, because that happens while the caller still computes on it.
    prefetch_size : int
        Batches to load ahead of the one that the caller holds, finished or not. 0 turns prefetching off.
    workers : {"thread", "process"}
        "process" is for sources and stages in Python that hold the GIL.
    threads : int, optional
        Threads that share the records of each batch. By default one for each CPU that this process may use, under
        torchrun its share of them, unless a `ThreadPolicy` in force gives loading another number; and a single one if
        the source is not thread-safe (see Notes).
    processes : int, optional
        Processes that share the records of each batch. The default is that of `threads`.
    start_method : {"forkserver", "spawn"}
        Method of starting processes, as in `multiprocessing`.
    timeout : float, optional
        Seconds to wait for a batch before an error is raised that names the record that a worker is loading. By default
        there is no limit.
    memory_budget : int, optional
        Bytes for all batches, including the caller's. It replaces `prefetch_size`: as many batches are loaded ahead as
        fit, judged by the first batch of the epoch.

    Raises
    ------
    TypeError
        If `iterator` cannot be iterated; from `shard`, `state_dict` and `load_state_dict`, if it is not a
        `BatchIterator`.
    ValueError
        If an argument is invalid, or the iterator must not be wrapped; if an iterator that is not one of etl's is
        combined with processes or `memory_budget`; if a source or stage cannot be pickled for processes; for processes
        on a system other than Linux; at the start of an epoch, if `memory_budget` is too small for two batches, or if
        `threads` are too many for the source: records differ when they are read at once.

    Notes
    -----
    A torch DataLoader with worker processes loads ahead by itself, so there is nothing to gain from wrapping it. One
    without them loads in the thread. The epochs of an iterable are numbered as in `etl.fit`.

    Several threads read a source of etl, a list, a tuple, an array, a torch `Subset` of one of these, and a source with
    an attribute `thread_safe` that is true. Any other source, such as a `MapDataset`, may share an open file, a
    connection or a buffer between its records. So one thread reads it and applies the stages, the same one in all
    epochs, which ends with this object. With `threads` above 1, some of its records are first read at once and
    compared. That finds most collisions, but cannot exclude others.

    The constructor starts the processes and returns while they still import what they need. They end with this object.
    Each has its own copy of the source and the stages, taken by the constructor, imports modules anew, without what the
    program has changed in them, and writes records into memory that it shares with this process. This process reads
    from a copy, too: the first record, the records of a batch that is padded and whose lengths are unknown, and those
    that replace a batch of bad records. If a process is killed, its batch raises an error that names the record it was
    loading. A process that hangs is killed after `timeout`, with the same error. The next epoch starts other processes
    in their place.

    Each batch that they load gets random numbers of its own: the global generators of Python, numpy and torch are
    seeded in these processes from numbers that the constructor draws from this process's, as a DataLoader does, and
    from seed, epoch, position and rank. So they are the same again if the script sets the same seeds, also after a
    resume.

    This process may fork at any time, as a `DataLoader` with workers does. A fork by another thread waits until the
    loading threads have finished their current records, and until a kernel that is being loaded is ready, so that the
    child inherits no held lock. It waits at most five seconds for a record and a minute for a kernel, and then gives a
    `RuntimeWarning`. The child may drop an epoch that was begun here, but not continue it. A batch from these processes
    lies in memory that a child shares: the child must not use it, since this process reuses the memory; pass it a copy,
    such as `copy.deepcopy(batch)`. The child may begin an epoch of its own with threads; with these processes that is a
    `RuntimeError`. It may make new iterators. When it ends, these processes live on.

    Examples
    --------
    >>> raw = etl.RawIterator(etl.ImageFolder("photos"), etl.image_pipeline(size=64), batch_size=16)
    >>> with etl.AsyncIterator(raw, prefetch_size=2) as train:
    ...     sum(batch.records for batch in train)
    40
    """

    async_unsupported_reason = "it is asynchronous already"

    def __init__(
        self,
        iterator: BatchIterator | Iterable[Any],
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
        if not getattr(iterator, "async_supported", True):
            reason = getattr(iterator, "async_unsupported_reason", "its async_supported is False")
            raise ValueError(f"{type(iterator).__name__} must not be wrapped in AsyncIterator: {reason}")
        self._threads = None if threads is None else whole_number("threads", threads, least=1)
        self._processes = None if processes is None else whole_number("processes", processes, least=1)
        self._workers = workers
        self._start_method = start_method
        self._timeout = timeout
        self._memory_budget = None if memory_budget is None else whole_number("memory_budget", memory_budget, least=1)
        super().__init__(iterator)
        self._name = type(iterator).__name__
        # The records that only one thread should read at a time; None if any number may.
        records: RecordSequence | None = iterator.records if isinstance(iterator, IndexedIterator) else None
        self._unsafe = None if records is None or is_thread_safe(records) else records
        self._is_checked = False
        # The only thread that reads, if there is a single one.
        self._reader = LastingThread()
        # The end of the last batch that was handed out; None if `_state` is the position.
        self._after: Any = None
        # Those of the running epoch.
        self._skipped = SkippedRecords()
        # Weak, so that the threads end when the caller leaves its loop and nothing else holds the epoch.
        self._running: weakref.ref[_Epoch] | None = None
        self._source = self._find_source()
        has_loader = self._source.loader is not None
        if workers == "process" and not has_loader:
            raise ValueError(
                f"workers='process' needs an iterator whose batches can be loaded in parts, such as RawIterator and "
                f"PresavedIterator; {self._name} makes whole batches itself: use workers='thread'"
            )
        if workers == "process" and sys.platform != "linux":
            raise ValueError("workers='process' needs Linux, for anonymous shared memory; use workers='thread'")
        if memory_budget is not None and not has_loader:
            raise ValueError(
                f"memory_budget needs the size of batches, which {self._name} does not tell; use prefetch_size"
            )
        self._open_pool()

    def __getstate__(self) -> dict[str, Any]:
        """Return what makes a copy; it has threads and processes of its own."""
        return {**self.__dict__, "_running": None, "_source": None, "_worker_pool": None, "_buffers": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._source = self._find_source()
        self._open_pool()

    def _find_source(self) -> IndexedIterator | WholeBatches:
        iterator = self._iterator
        return iterator if isinstance(iterator, IndexedIterator) else WholeBatches(iterator, self._name)

    def _open_pool(self) -> None:
        """Start the worker processes, if it has any."""
        self._worker_pool: WorkerPool | None = None
        # The memory that worker processes share. If None, batches are in the wrapped iterator's memory.
        self._buffers: BufferPool | None = None
        source = self._source
        if self.processes and isinstance(source, IndexedIterator):
            from etl.prefetch.worker_pool import WorkerPool  # here, because it needs a system with forks

            key = (_own_rank(), source.rank, source.world_size, source.seed)
            self._worker_pool = WorkerPool(self.processes, self._start_method, key)
            interrupts.end_with(self, self._worker_pool.close)
            loader = source.loader
            self._worker_pool.open(loader)
            if isinstance(loader, RecordLoader):
                planning = loader.reading_a_copy()
                source.wrap_loader(lambda _: planning)
            self._buffers = BufferPool(source.reuse, allocate=self._worker_pool.memory.allocate)

    @property
    def prefetch_size(self) -> int:
        """Batches to load ahead of the caller; 0 if prefetching is off."""
        return self._prefetch_size

    @property
    def threads(self) -> int:
        """Number of loading threads; 0 if prefetching is off or processes load."""
        if self._prefetch_size == 0 or self._workers == "process":
            return 0
        if self._source.loader is None:
            return 1
        return self._threads or (default_loader_threads() if self._unsafe is None else 1)

    @property
    def processes(self) -> int:
        """Number of loading processes; 0 if prefetching is off or threads load."""
        if self._prefetch_size == 0 or self._workers == "thread":
            return 0
        return self._processes or default_loader_threads()

    @property
    def epoch(self) -> int:
        return super().epoch if self._prefetch_size else self._iterator.epoch

    def __iter__(self) -> Iterator[Any]:
        if self._prefetch_size == 0:
            return iter(self._iterator)
        self._end_epoch()
        reader = self._only_reader()
        self._rewind()
        cursor = ThreadCursor()
        plans = self._source.plans(cursor, self._buffers)
        # With a budget, how many fit is known when a thread has planned the first.
        prefetch_size = self._prefetch_size if self._memory_budget is None else 1
        hold = partial(self._source.hold_batches, pool=self._buffers)
        hold(prefetch_size + 1)
        self._align()
        self._has_read_ahead, self._skipped = True, SkippedRecords()
        # No reference to `self`: the threads hold the prefetcher, which must not keep this object alive.
        name_error = self._source.name_error
        make_thread = interrupts.Worker if reader is None else reader.call
        prefetcher: Prefetcher
        if self._worker_pool is None:
            prefetcher = ThreadPrefetcher(plans, prefetch_size, cursor, name_error, self.threads, make_thread)
        else:
            from etl.prefetch.processes import ProcessPrefetcher  # here, for the same reason

            prefetcher = ProcessPrefetcher(plans, prefetch_size, cursor, name_error, self._worker_pool, make_thread)
        if self._memory_budget is not None:
            prefetcher.fit = partial(_fit_into, self._memory_budget, hold)
        epoch = _Epoch(self, prefetcher)
        self._running = weakref.ref(epoch)
        prefetcher.start()
        return epoch

    def allocate_with(self, allocate: Callable[[int], NDArray[np.uint8]]) -> None:
        """Let threads put batches into memory from `allocate(nbytes)`; processes have memory of their own."""
        self._source.allocate_with(allocate)

    def set_epoch(self, epoch: int) -> None:
        self._end_epoch()
        try:
            self.settle()
        finally:  # warnings may be errors
            super().set_epoch(epoch)

    def settle(self) -> None:
        if self._after is not None and self._source.is_last(self._after):
            self._end_whole_epoch()
        super().settle()

    def forget_skipped(self) -> None:
        self._skipped = SkippedRecords()
        super().forget_skipped()

    def state_dict(self) -> State:
        if self._prefetch_size == 0:
            return self._iterator.state_dict()
        return super().state_dict() if self._after is None else self._source.state_after(self._after)

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> AsyncIterator:
        return AsyncIterator(
            self._shard(rank, world_size, uneven),
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
        self._reader.close()
        if self._worker_pool is not None:
            self._worker_pool.close()
        if self._buffers is not None:
            self._buffers.clear()

    def _only_reader(self) -> LastingThread | None:
        """Return the thread that reads in all epochs; None if other threads may.

        Raises `ValueError` if there should be several, and they cannot read the source at once.
        """
        if self._source.loader is not None and self._unsafe is None:
            return None
        if self._unsafe is not None and self.threads > 1:
            if not self._is_checked:
                check_threads(self._unsafe, self.threads)
            self._is_checked = True
            return None
        # A thread that hangs is replaced. A fork of this process does not have it.
        if not self._reader.is_free():
            self._reader.close()
            self._reader = LastingThread()
        return self._reader

    def _explained(self, error: RecordError) -> RecordError:
        """Return `error`, with advice if its record failed in a loading thread but can be read in this one."""
        hung = isinstance(error.__cause__, TimeoutError)
        if self._unsafe is None or self._worker_pool is not None or error.stage != READ or hung:
            return error
        try:
            self._unsafe[error.record]
        except Exception:  # noqa: BLE001 - of the user's data set
            return error
        return RecordError(error.source, error.record, error.stage, error.name, f"{error.cause}; {READABLE_HERE}")

    def _end_epoch(self) -> None:
        epoch = self._running() if self._running is not None else None
        if epoch is not None:
            epoch.close()
        self._running = None

    def _align(self) -> None:
        super()._align()
        self._after = None

    def _end_whole_epoch(self) -> None:
        """Advance to the next epoch, after the last batch was handed out."""
        try:
            self._source.end_epoch(self._epoch, self._skipped)
        finally:  # warnings may be errors
            self._align()


class _Epoch(Iterator[Batch]):
    """One epoch in progress."""

    def __init__(self, iterator: AsyncIterator, prefetcher: Prefetcher) -> None:
        self._iterator = iterator
        self._prefetcher = prefetcher
        # Also when the caller drops the epoch, and at the latest when the interpreter exits.
        self._end = interrupts.end_with(self, prefetcher.stop)
        self._is_over = False
        # Held while a batch is taken: other threads that take batches of this epoch wait, and then see its end, too.
        self._lock = threading.RLock()

    def __next__(self) -> Batch:
        if self._is_over:
            raise StopIteration
        if os.getpid() != (owner := self._prefetcher.owner):  # first, since a fork may have inherited the lock
            raise RuntimeError(
                f"this epoch is loaded in process {owner}, and this process is a fork of it: begin another here"
            )
        with self._lock:
            if self._is_over:
                raise StopIteration
            batch_boundary()
            iterator = self._iterator
            try:
                while (plan := self._prefetcher.take(iterator._timeout)) is not None:
                    if plan.skipped:
                        iterator._skipped.add(plan)
                    iterator._after = plan.after
                    batch: Batch | None = plan.batch
                    if batch is not None:
                        return batch
            except BaseException as error:
                if not self._prefetcher.is_stopped:
                    self._is_over = True
                    self.close()
                if isinstance(error, RecordError):
                    raise_from(iterator._explained(error), error)
                raise
            self._is_over = True
            self.close()
            iterator._end_whole_epoch()
            raise StopIteration

    def close(self) -> None:
        """Stop loading and wait for the threads, which finish at most their current records: see `Prefetcher.stop`."""
        self._end()


def _own_rank() -> object:
    """Return what tells this process from the other ranks of a training, whose scripts set the same seeds."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return os.environ.get("RANK")


def _fit_into(budget: int, hold: Callable[[int], None], first: AnyPlan) -> int:
    """Return how many batches as large as `first` to load ahead, so that they and the caller's fit into `budget` bytes.

    Memory for all of them is kept with `hold`.
    """
    if not isinstance(first, BatchPlan):
        return 1
    nbytes = max(1, sum(array.nbytes for array in first.arrays.values()))
    if budget < 2 * nbytes:
        raise ValueError(
            f"memory_budget is {budget:,} bytes and a batch {nbytes:,}; it must hold two, the caller's and the next"
        )
    hold(budget // nbytes)
    return budget // nbytes - 1
