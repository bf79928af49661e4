"""The threads behind `AsyncIterator`: all of them load each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from etl.loading.batch_plan import AnyPlan, BatchPlan
from etl.loading.records import raise_from
from etl.prefetch.prefetcher import ErrorNamer, PendingBatch, Prefetcher
from etl.stages.cursor import IDLE, Cursor, ThreadCursor
from presave import forks, interrupts


class ThreadPrefetcher(Prefetcher):
    """Loads the batches of one epoch in threads. One thread at a time plans the next batch.

    `make_thread` is `interrupts.Worker`, or `LastingThread.call`.
    """

    def __init__(
        self,
        plans: Iterator[AnyPlan],
        prefetch_size: int,
        cursor: Cursor,
        name_error: ErrorNamer,
        threads: int,
        make_thread: Callable[..., interrupts.AnyWorker],
    ) -> None:
        super().__init__(plans, prefetch_size, cursor, name_error)
        self._cursors = [ThreadCursor() for _ in range(threads)]
        # The threads refer to the prefetcher, not to the epoch, so that the epoch can be collected.
        self._working = threads
        self._threads = [make_thread(self._work, (cursor,), name="etl-prefetch") for cursor in self._cursors]

    def _work(self, cursor: Cursor) -> None:
        try:
            self._load(cursor)
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits for a batch
            self._fail(error)
        finally:
            with self._lock:
                self._working -= 1
                is_last = self._working == 0
            if is_last:
                self._close_plans()

    def _load(self, cursor: Cursor) -> None:
        workers = len(self._cursors)
        with forks.held_off():
            while True:
                if forks.is_pending:
                    forks.let_through()
                with self._lock:
                    while not self._untaken and not self.is_stopped:
                        if not self._is_planning and (self._is_exhausted or self._room > 0):
                            break
                        forks.wait_on(self._has_work)
                    if self.is_stopped:
                        return
                    pending: PendingBatch | None = None
                    if self._untaken:
                        pending = self._untaken[0]
                        first, last = pending.take_chunk(workers)
                        if last == pending.plan.rows:
                            self._untaken.popleft()
                    elif self._is_exhausted:
                        return
                    else:
                        self._room -= 1
                        self._is_planning = True
                if pending is None:
                    self._plan_next()
                    continue
                try:
                    pending.plan.load(first, last, cursor)
                except BaseException as raised:  # noqa: BLE001 - it belongs to the thread that waits for this batch
                    pending.errors.append((first, raised))
                cursor.record = IDLE
                self._end_chunk(pending, last - first)
                del pending  # or its batch would live until the next one is finished
                if self._skipping:
                    self._drop_skipped(cursor)

    def _stop(self) -> None:
        super()._stop()
        for cursor in self._cursors:
            cursor.cancelled = True

    def _close_plans(self) -> None:
        """Close the iterator of plans, which no thread advances any more, so that a user's loader ends its work."""
        plans, self._plans = self._plans, iter(())
        close = getattr(plans, "close", None)
        if close is not None:
            close()

    def _check_timeout(self, timeout: float) -> None:
        self._hung = True
        cause = TimeoutError(f"not finished after {timeout:g} s of waiting for its batch")
        if self._pending:
            awaited = self._pending[0].plan
            if isinstance(awaited, BatchPlan):
                for cursor in self._cursors:
                    at = ThreadCursor(cursor.record, cursor.stage)  # it may go on meanwhile
                    if at.record != IDLE and at.record in awaited.indices:
                        raise awaited.loader.name_error(at, cause) from cause
        raise_from(self._name_error(self._planning, cause), cause)
