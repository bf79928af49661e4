"""Batches ahead of the caller, in order: what threads and processes that load have in common."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from etl.loading.batch import Batch
from etl.loading.batch_plan import ENDED, Loading, State

# How long to wait for a thread of this process to finish the record it is at, once somebody was found to hang.
HUNG_PATIENCE_SECONDS = 0.1


ErrorAtBeginning = Callable[[BaseException], BaseException]


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

    def claim(self, workers: int, least: int = 1) -> tuple[int, int]:
        """The next part: half of an even share of what is left, so that all workers end at nearly the same time with
        few parts to hand out (guided self-scheduling: Polychronopoulos and Kuck 1987, doi:10.1109/TC.1987.5009495).
        No fewer records than `least`, except at the end.
        """
        left = len(self.loading) - self.unclaimed
        size = min(left, max(self.loading.task_records, least, left // (2 * workers)))
        first, self.unclaimed = self.unclaimed, self.unclaimed + size
        return first, self.unclaimed


class Crew:
    """Loads the batches of one epoch, at most `prefetch_size` finished or being made.

    `loadings` yields each batch to be loaded with the state after it; it is advanced by one thread at a time. Who
    loads them is what a subclass knows. `error_at_beginning` makes of what happened to who advances it an error that
    names the record that is loaded for that, if one is.
    """

    def __init__(
        self, loadings: Iterator[tuple[Loading, State]], prefetch_size: int, error_at_beginning: ErrorAtBeginning
    ) -> None:
        self._loadings = loadings
        self._error_at_beginning = error_at_beginning
        self._room = prefetch_size
        self._jobs: deque[Job] = deque()
        self._is_beginning = False
        self._begin_error: BaseException | None = None
        self._is_exhausted = False
        self.is_stopped = False
        self._hung = False
        self._owner = os.getpid()
        # Re-entrant, because the collector may stop the crew in a thread that is inside it.
        self._lock = threading.RLock()
        # Those who load wait for the one, the caller for the other: waking somebody who must wait on costs as much as a
        # small batch.
        self._has_work = threading.Condition(self._lock)
        self._is_ready = threading.Condition(self._lock)

    def take(self, timeout: float | None = None) -> Job | None:
        """Wait for the next batch; None at the end. Its place is free from then on: another is begun.

        Raises what loading it raised, `RuntimeError` where the crew was stopped or belongs to the process that this one
        was forked from, and after `timeout` seconds of waiting a `RecordError` whose cause is a `TimeoutError`, for the
        first record that somebody is at.
        """
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"this epoch is loaded in process {self._owner}, of which this one is a fork; begin one of its own here"
            )
        with self._lock:
            deadline = None if timeout is None else time.monotonic() + timeout
            while not self._is_next_known():
                left = None if deadline is None else deadline - time.monotonic()
                if timeout is not None and left is not None and left <= 0:
                    self._check_timeout(timeout)
                    deadline, left = time.monotonic() + timeout, timeout
                self._is_ready.wait(left)
            if self.is_stopped:
                raise RuntimeError(ENDED)
            if self._jobs:
                job = self._jobs.popleft()
                self._room += 1
                self._make_known()
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
        """Have no further record begun, and wait for the threads of this process. Nothing in a fork of it, which has
        none of them, and where the lock that one of them held is held for ever.
        """
        if os.getpid() == self._owner:
            self._stop()

    def _stop(self) -> None:
        raise NotImplementedError

    def _check_timeout(self, timeout: float) -> None:
        """Raise for the caller's having waited so long, unless there is reason to wait on; `_lock` is held."""
        raise NotImplementedError

    def _make_known(self) -> None:
        """Tell one of those who load that there is room for another batch; `_lock` is held."""
        self._has_work.notify()

    def _is_next_known(self) -> bool:
        if self.is_stopped:
            return True
        if self._jobs:
            return self._jobs[0].is_done
        return self._is_exhausted and not self._is_beginning

    def _begin(self) -> None:
        """Have another batch to load; `_is_beginning` is set, and its place taken."""
        # An error is kept in no variable: its traceback holds these frames, and would keep itself and its batch alive.
        begun: tuple[Loading, State] | None = None
        try:
            begun = next(self._loadings, None)
        except BaseException as raised:  # noqa: BLE001 - it belongs to the thread that waits for this batch
            self._begin_error = raised
        with self._lock:
            self._is_beginning = False
            if begun is None:
                self._is_exhausted = True
            elif not self.is_stopped:
                job = Job(*begun, unfinished=len(begun[0]))
                if not job.unfinished:
                    self._finish(job)
                self._jobs.append(job)
                # Whoever has begun it goes on with its first part.
                if len(job.loading) > job.loading.task_records:
                    self._has_work.notify_all()
                elif self._room > 0:
                    self._has_work.notify()
            if self._is_exhausted:
                self._has_work.notify_all()
            self._is_ready.notify_all()

    def _find_unclaimed(self) -> Job | None:
        """The first batch with records that nobody has claimed; `_lock` is held."""
        for job in self._jobs:
            if job.unclaimed < len(job.loading):
                return job
        return None

    def _end_part(self, job: Job, records: int) -> None:
        """So many records of `job` are loaded, or will not be."""
        with self._lock:
            if job.errors:
                self._is_exhausted = True  # nothing after it will be asked for
                self._has_work.notify_all()
            job.unfinished -= records
            if not job.unfinished:
                self._finish(job)
                self._is_ready.notify_all()

    def _finish(self, job: Job) -> None:
        if not job.errors:
            try:
                job.batch = job.loading.finish()
            except BaseException as raised:  # noqa: BLE001 - it belongs to the thread that waits for this batch
                job.errors.append((0, raised))
        job.is_done = True


def raise_from(error: BaseException, cause: BaseException) -> NoReturn:
    """Raise `error` because of `cause`, which it may be itself."""
    raise error from (None if error is cause else cause)
