"""Batches ahead of the caller, in order: the part that threads and processes have in common."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from etl.loading.batch_plan import ENDED, AnyPlan

# Seconds to wait for a thread of this process to finish the record it is at, when something was found to hang.
HUNG_PATIENCE_SECONDS = 0.1

# Returns an error for one that was raised while a batch was planned: it names the record that was loaded, if any.
ErrorNamer = Callable[[BaseException], BaseException]


@dataclass(eq=False)
class PendingBatch:
    """A batch that is being loaded.

    Attributes
    ----------
    plan : BatchPlan or ReadyBatch
        Its records and arrays.
    unfinished : int
        Rows that are not loaded.
    next_row : int
        The first row that no worker has taken.
    is_done : bool
        True when all of its rows are loaded or have failed.
    errors : list of (int, BaseException)
        The first row of each chunk that failed, with its error.
    """

    plan: AnyPlan
    unfinished: int
    next_row: int = 0
    is_done: bool = False
    errors: list[tuple[int, BaseException]] = field(default_factory=list)

    def take_chunk(self, workers: int, least: int = 1) -> tuple[int, int]:
        """Return the first row of the next chunk, and the row after its last.

        A chunk is half of an even share of the rows that are left, so that all workers end at nearly the same time with
        few chunks to hand out (guided self-scheduling: Polychronopoulos and Kuck 1987, doi:10.1109/TC.1987.5009495). It
        has no fewer than `least` rows, except the last one.
        """
        rows, first = self.plan.rows, self.next_row
        left = rows - first
        if self.plan.granularity == "batch":
            least = rows
        elif self.plan.granularity == "share":
            least = max(least, -(-rows // workers))
        self.next_row = first + min(left, max(least, left // (2 * workers)))
        return first, self.next_row


class Prefetcher:
    """Loads the batches of one epoch, at most `prefetch_size` finished or being made.

    A subclass has workers that plan batches, one at a time, and load their chunks.

    Parameters
    ----------
    plans : iterator of BatchPlan or ReadyBatch
        The batches of the epoch, in order; it is advanced by one thread at a time.
    prefetch_size : int
        Batches that are finished or being made, besides the caller's.
    name_error : callable
        Returns an error for what happened while a batch was planned, which names the record that was loaded for that.
    """

    def __init__(self, plans: Iterator[AnyPlan], prefetch_size: int, name_error: ErrorNamer) -> None:
        self._plans = plans
        self._name_error = name_error
        # Batches that there is room for.
        self._room = prefetch_size
        self._pending: deque[PendingBatch] = deque()
        # Those of them with rows that no worker has taken.
        self._untaken: deque[PendingBatch] = deque()
        self._is_planning = False
        self._plan_error: BaseException | None = None
        self._is_exhausted = False
        self.is_stopped = False
        self._hung = False
        self._owner = os.getpid()
        # Re-entrant, because the collector may stop the prefetcher in a thread that is inside it.
        self._lock = threading.RLock()
        # Workers wait on `_has_work`, the consumer on `_is_ready`: waking a thread that has to wait on costs as much as
        # loading a small batch.
        self._has_work = threading.Condition(self._lock)
        self._is_ready = threading.Condition(self._lock)
        # The descriptor of a worker that waits for more than `_has_work`; -1 if there is none.
        self._bell = -1

    def take(self, timeout: float | None = None) -> AnyPlan | None:
        """Wait for the next batch and return it; None at the end. Another one is begun in its place.

        Raises
        ------
        Exception
            If loading it has failed.
        RuntimeError
            If the prefetcher was stopped, or belongs to the process that this one was forked from.
        RecordError
            If it took more than `timeout` seconds; it names the first record that a worker is at, and its cause is a
            `TimeoutError`.
        """
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"this epoch is loaded in process {self._owner}, of which this one is a fork; begin one of its own here"
            )
        with self._lock:
            deadline = None if timeout is None else time.monotonic() + timeout
            while not self.is_stopped:
                if self._pending:
                    if self._pending[0].is_done:
                        break
                elif self._is_exhausted and not self._is_planning:
                    break
                left = None if deadline is None else deadline - time.monotonic()
                if timeout is not None and left is not None and left <= 0:
                    self._check_timeout(timeout)
                    deadline, left = time.monotonic() + timeout, timeout
                self._is_ready.wait(left)
            if self.is_stopped:
                raise RuntimeError(ENDED)
            if self._pending:
                pending = self._pending.popleft()
                self._room += 1
                self._has_work.notify()
                if self._bell >= 0:
                    os.eventfd_write(self._bell, 1)
                if not pending.errors:
                    return pending.plan
                error = min(pending.errors, key=lambda each: each[0])[1]
                pending.errors.clear()
            elif self._plan_error is not None:
                error, self._plan_error = self._plan_error, None
            else:
                return None
        try:
            raise error
        finally:  # its traceback holds this frame: what the caller had would live until the collector runs
            del error

    def stop(self) -> None:
        """Stop taking records and join this process's threads.

        Does nothing in a fork of this process: it has none of them, and a lock that one of them held is held for ever.
        """
        if os.getpid() == self._owner:
            self._stop()

    def _stop(self) -> None:
        raise NotImplementedError

    def _check_timeout(self, timeout: float) -> None:
        """Raise an error for a wait that was too long, unless there is reason to wait on; `_lock` is held."""
        raise NotImplementedError

    def _plan_next(self) -> None:
        """Plan the next batch; `_is_planning` is set, and there is one room less."""
        # An error is kept in no variable: its traceback holds these frames, and would keep itself and its batch alive.
        plan: AnyPlan | None = None
        try:
            plan = next(self._plans, None)
        except BaseException as raised:  # noqa: BLE001 - it belongs to the thread that waits for this batch
            self._plan_error = raised
        with self._lock:
            self._is_planning = False
            if plan is None:
                self._is_exhausted = True
            elif not self.is_stopped:
                pending = PendingBatch(plan, plan.rows, is_done=plan.rows == 0)
                self._pending.append(pending)
                if plan.rows:
                    self._untaken.append(pending)
                # The worker that has planned it goes on with its first chunk.
                if plan.rows > 1 and plan.granularity != "batch":
                    self._has_work.notify_all()
                elif self._room > 0:
                    self._has_work.notify()
            if self._is_exhausted:
                self._has_work.notify_all()
            if plan is None or not plan.rows:
                self._is_ready.notify_all()

    def _end_chunk(self, pending: PendingBatch, rows: int) -> None:
        """Note that so many rows of `pending` are loaded, or will not be."""
        with self._lock:
            if pending.errors:
                self._is_exhausted = True  # nothing after it will be asked for
                self._has_work.notify_all()
            pending.unfinished -= rows
            if pending.unfinished:
                return
            if pending.plan.skipped and not pending.errors:
                try:
                    pending.plan.drop_skipped()
                except BaseException as raised:  # noqa: BLE001 - it belongs to the thread that waits for this batch
                    pending.errors.append((0, raised))
            pending.is_done = True
            self._is_ready.notify_all()


def raise_from(error: BaseException, cause: BaseException) -> NoReturn:
    """Raise `error` because of `cause`, which it may be itself."""
    try:
        raise error from (None if error is cause else cause)
    finally:  # its traceback holds this frame: a cycle would live until the collector runs
        del error, cause
