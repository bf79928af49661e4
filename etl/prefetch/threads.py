"""The threads behind `AsyncIterator`: all of them load each batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from etl.loading.batch_plan import AnyPlan, BatchPlan
from etl.loading.records import raise_from
from etl.prefetch.prefetcher import HUNG_PATIENCE_SECONDS, ErrorNamer, PendingBatch, Prefetcher
from etl.stages.cursor import IDLE, Cursor, ThreadCursor
from presave import forks


class ThreadPrefetcher(Prefetcher):
    """Loads the batches of one epoch in threads. One thread at a time plans the next batch.

    Parameters
    ----------
    plans, prefetch_size, name_error
        See `Prefetcher`.
    threads : int
        Number of threads.
    make_thread : callable
        `threading.Thread`, or `LastingThread.call`.
    """

    def __init__(
        self,
        plans: Iterator[AnyPlan],
        prefetch_size: int,
        name_error: ErrorNamer,
        threads: int,
        make_thread: Callable[..., Any] = threading.Thread,
    ) -> None:
        super().__init__(plans, prefetch_size, name_error)
        self._cursors = [ThreadCursor() for _ in range(threads)]
        # The threads refer to the prefetcher, not to the epoch, so that the epoch can be collected.
        self._threads = [
            make_thread(target=self._work, args=(cursor,), name="etl-prefetch", daemon=True) for cursor in self._cursors
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # the threads that have started would wait for ever
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            self.stop()
            raise

    def _work(self, cursor: Cursor) -> None:
        workers = len(self._cursors)
        with forks.held_off():
            while True:
                if forks.is_pending:
                    forks.let_through()
                with self._lock:
                    pending = self._wait_for_work()
                    if self.is_stopped or (pending is None and not self._is_planning):
                        return
                    first, last = (0, 0) if pending is None else pending.take_chunk(workers)
                    if pending is not None and last == pending.plan.rows:
                        self._untaken.popleft()
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

    def _wait_for_work(self) -> PendingBatch | None:
        """Wait for a batch with rows to take, and return it.

        Return None if the calling thread has to plan another batch, in which case `_is_planning` was set, or to end.
        """
        while not self.is_stopped:
            if self._untaken:
                return self._untaken[0]
            if not self._is_planning:
                if self._is_exhausted:
                    return None
                if self._room > 0:
                    self._room -= 1
                    self._is_planning = True
                    return None
            forks.wait_on(self._has_work)
        return None

    def _stop(self) -> None:
        with self._lock:
            self.is_stopped = True
            for cursor in self._cursors:
                cursor.cancelled = True
            self._pending.clear()
            self._untaken.clear()
            self._has_work.notify_all()
            self._is_ready.notify_all()
        # The garbage collector may run this in one of the threads, which holds the lock that another one waits for.
        if any(thread.ident == threading.get_ident() and thread.is_alive() for thread in self._threads):
            return
        for thread in self._threads:
            thread.join(HUNG_PATIENCE_SECONDS if self._hung else None)
        if not self._hung:
            self._close_plans()

    def _check_timeout(self, timeout: float) -> None:
        self._hung = True
        cause = TimeoutError(f"not finished after {timeout:g} s of waiting for its batch")
        if self._pending:
            awaited = self._pending[0].plan
            if isinstance(awaited, BatchPlan):
                for cursor in self._cursors:
                    if cursor.record != IDLE and cursor.record in awaited.indices:
                        raise awaited.loader.name_error(cursor, cause) from cause
        raise_from(self._name_error(cause), cause)
