"""Base class of prefetchers, which load batches ahead of the caller and hand them out in order."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from etl.loading.batch_plan import ENDED, AnyPlan
from etl.stages.cursor import IDLE, Cursor
from presave import interrupts

# Seconds to wait for a thread of this process that is known to hang.
HUNG_PATIENCE_SECONDS = 0.1

# Returns an error for the given one that names what is loaded at a cursor, if anything.
ErrorNamer = Callable[[Cursor, BaseException], BaseException]


@dataclass(eq=False)
class PendingBatch:
    """A batch that is being loaded.

    Attributes
    ----------
    plan : BatchPlan or ReadyBatch
        The records and arrays of the batch.
    unfinished : int
        Rows that are not loaded yet.
    next_row : int
        The first row that no worker has taken.
    is_done : bool
        True when all rows are loaded or have failed, and those that were skipped are dropped.
    errors : list of (int, BaseException)
        The first row of each chunk that failed, with its error.
    """

    plan: AnyPlan
    unfinished: int
    next_row: int = 0
    is_done: bool = False
    errors: list[tuple[int, BaseException]] = field(default_factory=list)

    def take_chunk(self, workers: int, least: int = 1) -> tuple[int, int]:
        """Take the next chunk; return its first row, and the row after its last.

        A chunk is half of an even share of the remaining rows, so that all workers finish at nearly the same time with
        few chunks to hand out (guided self-scheduling: Polychronopoulos and Kuck 1987, doi:10.1109/TC.1987.5009495). It
        has at least `least` rows, except for the last chunk.
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
    """Loads the batches of one epoch ahead of the caller, once it is started.

    A subclass has workers that plan batches, one at a time, and load their chunks.
    """

    def __init__(self, plans: Iterator[AnyPlan], prefetch_size: int, cursor: Cursor, name_error: ErrorNamer) -> None:
        self._plans = plans
        self._planning = cursor
        self._name_error = name_error
        # Batches that may still be begun.
        self._room = prefetch_size
        # Returns how many batches to load ahead, if that depends on the first. Until then it is the only one.
        self.fit: Callable[[AnyPlan], int] | None = None
        self._pending: deque[PendingBatch] = deque()
        # Pending batches with rows that no worker has taken.
        self._untaken: deque[PendingBatch] = deque()
        # Pending batches whose rows are all loaded, except for some that were skipped.
        self._skipping: deque[PendingBatch] = deque()
        self._is_planning = False
        self._plan_error: BaseException | None = None
        self._is_exhausted = False
        self.is_stopped = False
        self._hung = False
        # Threads of this process, and what each of them loads.
        self._threads: Sequence[interrupts.AnyWorker] = ()
        self._cursors: Sequence[Cursor] = ()
        self.owner = os.getpid()
        # Re-entrant, because the collector may stop the prefetcher in a thread that is inside it.
        self._lock = threading.RLock()
        # Workers wait on `_has_work`, the consumer on `_is_ready`. There are two conditions because waking a thread
        # that must go on waiting costs as much as loading a small batch.
        self._has_work = threading.Condition(self._lock)
        self._is_ready = interrupts.Wakeups()
        # The eventfd of a thread that waits for more than `_has_work`; -1 if there is none.
        self._bell = -1

    def take(self, timeout: float | None) -> AnyPlan | None:
        """Wait for the next batch and return it; None at the end of the epoch. Workers begin another in its place.

        Raises
        ------
        Exception
            If loading the batch has failed.
        RuntimeError
            If the prefetcher was stopped.
        RecordError
            If the batch is not ready after `timeout` seconds. It names a record of the batch that a worker is loading;
            its cause is a `TimeoutError`.
        """
        left = timeout
        while True:
            with self._lock:
                if self.is_stopped:
                    raise RuntimeError(ENDED)
                if self._pending:
                    if self._pending[0].is_done:
                        pending = self._pending.popleft()
                        self._room += 1
                        self._has_work.notify()
                        if self._bell >= 0:
                            os.eventfd_write(self._bell, 1)
                        if not pending.errors:
                            return pending.plan
                        error = min(pending.errors, key=lambda each: each[0])[1]
                        pending.errors.clear()
                        break
                elif self._is_exhausted and not self._is_planning:
                    if self._plan_error is None:
                        return None
                    error, self._plan_error = self._plan_error, None
                    break
                if timeout is not None and left is not None and left <= 0:
                    self._check_timeout(timeout)
                    left = timeout
                self._is_ready.waiting += 1
            # A little at a time: if all processes are stopped meanwhile, that does not count.
            patience, began = None if left is None else min(left, 1.0), time.monotonic()
            self._is_ready.wait(self._lock, patience)
            if left is not None and patience is not None:
                left -= min(patience, time.monotonic() - began)
        try:
            raise error
        finally:  # its traceback holds this frame: what the caller had would live until the collector runs
            del error

    def start(self) -> None:
        """Start this process's threads. The caller must have arranged for `stop`."""
        interrupts.start(self._threads)

    def stop(self) -> None:
        """Stop taking records and wait for this process's threads, which finish their current records.

        A thread that takes longer than `PATIENCE_SECONDS` is left, with a warning, and ends when its record does. Any
        thread may call this, and again; after an interrupt it must be called again.

        Does nothing in a fork of this process, which has none of the threads; a lock that one of them held stays locked
        there forever.
        """
        if os.getpid() != self.owner:
            return
        with self._lock:
            self._stop()
            self._pending.clear()
            self._untaken.clear()
            self._skipping.clear()
            self._has_work.notify_all()
            self._is_ready.notify_all()
        # The garbage collector may run this in one of the threads, which holds the lock that another one waits for.
        if any(thread.ident == threading.get_ident() for thread in self._threads):
            return
        patience = HUNG_PATIENCE_SECONDS if self._hung else interrupts.PATIENCE_SECONDS
        if not interrupts.wait_for(self._threads, patience) and not self._hung:
            self._hung = True
            cause = TimeoutError(f"not finished {patience:g} s after the loop over the batches was left")
            hung = next((each for each in self._cursors if each.record != IDLE), self._planning)
            warnings.warn(
                f"{self._name_error(hung, cause)}; the thread that waits for it is left, and ends when it is finished",
                RuntimeWarning,
                stacklevel=2,
            )

    def _stop(self) -> None:
        """Make the threads end; `_lock` is held."""
        self.is_stopped = self._planning.cancelled = True

    def _fail(self, error: BaseException) -> None:
        """Fail all batches: nothing can be loaded any more."""
        with self._lock:
            self._plan_error, self._is_exhausted, self._is_planning = error, True, False
            for pending in self._pending:
                if not pending.is_done:
                    pending.errors.append((0, error))
                    pending.is_done = True
            self._has_work.notify_all()
            self._is_ready.notify_all()

    def _check_timeout(self, timeout: float) -> None:
        """Raise an error because a wait was too long, unless waiting longer is justified; `_lock` is held."""
        raise NotImplementedError

    def _plan_next(self) -> None:
        """Plan the next batch; the caller has set `_is_planning` and decreased `_room`."""
        # An error is kept in no variable: its traceback holds these frames, and would keep itself and its batch alive.
        plan: AnyPlan | None = None
        more = 0
        try:
            plan = next(self._plans, None)
            if plan is not None and self.fit is not None:
                more, self.fit = self.fit(plan) - 1, None
        except BaseException as raised:  # noqa: BLE001 - it belongs to the thread that waits for this batch
            self._plan_error, plan = raised, None
        with self._lock:
            self._room += more
            self._is_planning = False
            if plan is None:
                self._is_exhausted = True
            elif not self.is_stopped:
                pending = PendingBatch(plan, plan.rows, is_done=plan.rows == 0)
                self._pending.append(pending)
                if plan.rows:
                    self._untaken.append(pending)
                # The worker that planned the batch takes its first chunk, so others are woken only if there is more.
                if plan.rows > 1 and plan.granularity != "batch":
                    self._has_work.notify_all()
                elif self._room > 0:
                    self._has_work.notify()
            if self._is_exhausted:
                self._has_work.notify_all()
            if plan is None or not plan.rows:
                self._is_ready.notify_all()

    def _end_chunk(self, pending: PendingBatch, rows: int) -> None:
        """Record that `rows` rows of `pending` are loaded, or never will be; then `_drop_skipped` may have work."""
        with self._lock:
            if pending.errors:
                self._is_exhausted = True  # nothing after it will be asked for
                self._has_work.notify_all()
            pending.unfinished -= rows
            if pending.unfinished:
                return
            if pending.plan.skipped and not pending.errors:
                self._skipping.append(pending)
            else:
                pending.is_done = True
                self._is_ready.notify_all()

    def _drop_skipped(self, cursor: Cursor) -> None:
        """Finish batches of which rows were skipped. The caller must hold no lock, because records may be loaded."""
        while True:
            with self._lock:
                if not self._skipping:
                    return
                pending = self._skipping.popleft()
            try:
                pending.plan.drop_skipped(cursor)
            except BaseException as raised:  # noqa: BLE001 - it belongs to the thread that waits for this batch
                pending.errors.append((0, raised))
            cursor.record = IDLE
            with self._lock:
                pending.is_done = True
                self._is_ready.notify_all()
