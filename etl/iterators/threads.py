"""The threads behind `AsyncIterator`: batches ahead of the caller, each spread over all, handed out in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from etl.batch import Batch
from etl.iterators.iterator import State
from etl.iterators.loading import Loading, Where

ENDED = "this epoch was ended: the iterator was closed or another epoch started"
# How long to wait for threads to finish the record they are at, once one of them was found to hang.
HUNG_PATIENCE_SECONDS = 0.1


@dataclass(eq=False)
class Job:
    """A batch in the making: its records from `unclaimed` on are nobody's yet, and `unfinished` are not loaded."""

    loading: Loading
    state: State
    unclaimed: int = 0
    unfinished: int = 0
    # The first record of each part that failed, with its error.
    errors: list[tuple[int, BaseException]] = field(default_factory=list)
    batch: Batch | None = None
    is_done: bool = False

    def claim(self, workers: int) -> tuple[int, int]:
        """The next part: half of an even share of what is left, so that all workers end at nearly the same time with
        few parts to hand out (guided self-scheduling: Polychronopoulos and Kuck 1987, doi:10.1109/TC.1987.5009495).
        """
        left = len(self.loading) - self.unclaimed
        size = min(left, max(self.loading.task_records, left // (2 * workers)))
        first, self.unclaimed = self.unclaimed, self.unclaimed + size
        return first, self.unclaimed


class ThreadCrew:
    """`threads` threads that load the batches of one epoch, at most `prefetch_size` finished or being made.

    `loadings` yields each batch to be loaded with the state after it; it is advanced by one thread at a time.
    """

    def __init__(self, loadings: Iterator[tuple[Loading, State]], prefetch_size: int, threads: int) -> None:
        self._loadings = loadings
        self._room = prefetch_size
        self._workers = threads
        self._jobs: deque[Job] = deque()
        self._is_beginning = False
        self._begin_error: BaseException | None = None
        self._is_exhausted = False
        self.is_stopped = False
        # Re-entrant, because the collector may stop the crew in a thread that is inside it.
        self._changed = threading.Condition(threading.RLock())
        self._wheres: list[Where] = [[-1, 0] for _ in range(threads)]
        self._hung = False
        # They hold the crew and not the epoch, so that the epoch can be collected.
        self._threads = [
            threading.Thread(target=self._work, args=(where,), name="etl-prefetch", daemon=True)
            for where in self._wheres
        ]
        for thread in self._threads:
            thread.start()

    def take(self, timeout: float | None = None) -> Job | None:
        """Wait for the next batch; None at the end. Its place is free from then on: another is begun.

        Raises what loading it raised, `RuntimeError` where the crew was stopped, and after `timeout` seconds of waiting
        a `RecordError` whose cause is a `TimeoutError`, for the first record that a thread is at.
        """
        with self._changed:
            deadline = None if timeout is None else time.monotonic() + timeout
            while not self._is_next_known():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    self._raise_timeout(timeout)
                self._changed.wait(left)
            if self.is_stopped:
                raise RuntimeError(ENDED)
            if self._jobs:
                job = self._jobs.popleft()
                self._room += 1
                self._changed.notify_all()
                if not job.errors:
                    return job
                error = min(job.errors, key=lambda each: each[0])[1]
                job.errors.clear()
            elif self._begin_error is not None:
                error, self._begin_error = self._begin_error, None
            else:
                return None
        try:
            raise error
        finally:  # its traceback holds this frame: what the caller had would live until the collector runs
            del error

    def stop(self) -> None:
        """Have no further record begun, and wait for those that are."""
        with self._changed:
            self.is_stopped = True
            self._jobs.clear()
            self._changed.notify_all()
        # The collector may run this in a thread of the crew while it holds the lock that another one waits for.
        if threading.current_thread() in self._threads:
            return
        for thread in self._threads:
            thread.join(HUNG_PATIENCE_SECONDS if self._hung else None)

    def _is_next_known(self) -> bool:
        if self.is_stopped:
            return True
        if self._jobs:
            return self._jobs[0].is_done
        return self._is_exhausted and not self._is_beginning

    def _raise_timeout(self, timeout: float | None) -> None:
        self._hung = True
        cause = TimeoutError(f"not finished after {timeout:g} s of waiting for its batch")
        if self._jobs:
            awaited = self._jobs[0].loading
            at = [where for where in self._wheres if where[0] >= 0 and where[0] in awaited.numbers]
            if at:
                raise awaited.loader.error_at(at[0], cause) from cause
        raise cause

    def _work(self, where: Where) -> None:
        while True:
            with self._changed:
                job = self._wait_for_work()
                if self.is_stopped or (job is None and not self._is_beginning):
                    return
                part = (0, 0) if job is None else job.claim(self._workers)
            if job is None:
                self._begin()
            else:
                self._load(job, *part, where)
            del job  # or its batch would live until the next one is finished

    def _wait_for_work(self) -> Job | None:
        """A batch with records to claim; or None, and then `_is_beginning` tells whether to begin another or to end."""
        while not self.is_stopped:
            for job in self._jobs:
                if job.unclaimed < len(job.loading):
                    return job
            if not self._is_beginning:
                if self._is_exhausted:
                    return None
                if self._room > 0:
                    self._room -= 1
                    self._is_beginning = True
                    return None
            self._changed.wait()
        return None

    def _begin(self) -> None:
        # An error is kept in no variable: its traceback holds these frames, and would keep itself and its batch alive.
        begun: tuple[Loading, State] | None = None
        try:
            begun = next(self._loadings, None)
        except BaseException as raised:  # noqa: BLE001 - it belongs to the thread that waits for this batch
            self._begin_error = raised
        with self._changed:
            self._is_beginning = False
            if begun is None:
                self._is_exhausted = True
            elif not self.is_stopped:
                job = Job(*begun, unfinished=len(begun[0]))
                if not job.unfinished:
                    self._finish(job)
                self._jobs.append(job)
            self._changed.notify_all()

    def _load(self, job: Job, first: int, last: int, where: Where) -> None:
        try:
            job.loading.load(first, last, where)
        except BaseException as raised:  # noqa: BLE001 - as above
            job.errors.append((first, raised))
        where[0] = -1
        with self._changed:
            if job.errors:
                self._is_exhausted = True  # nothing after it will be asked for
            job.unfinished -= last - first
            if not job.unfinished:
                self._finish(job)
                self._changed.notify_all()

    def _finish(self, job: Job) -> None:
        if not job.errors:
            try:
                job.batch = job.loading.finish()
            except BaseException as raised:  # noqa: BLE001 - it belongs to the thread that waits for this batch
                job.errors.append((0, raised))
        job.is_done = True
