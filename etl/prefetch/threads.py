"""The threads behind `AsyncIterator`: each batch is spread over all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from etl.loading.batch_plan import Loading, State, Where, nowhere
from etl.prefetch.prefetcher import HUNG_PATIENCE_SECONDS, Crew, ErrorAtBeginning, Job, raise_from
from presave import forks


class ThreadCrew(Crew):
    """`threads` threads that load the batches of one epoch. One of them at a time advances `loadings`."""

    def __init__(
        self,
        loadings: Iterator[tuple[Loading, State]],
        prefetch_size: int,
        error_at_beginning: ErrorAtBeginning,
        threads: int,
    ) -> None:
        super().__init__(loadings, prefetch_size, error_at_beginning)
        self._workers = threads
        self._wheres: list[Where] = [nowhere() for _ in range(threads)]
        # They hold the crew and not the epoch, so that the epoch can be collected.
        self._threads = [
            threading.Thread(target=self._work, args=(where,), name="etl-prefetch", daemon=True)
            for where in self._wheres
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # those that have started would wait for ever
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            self.stop()
            raise

    def _stop(self) -> None:
        with self._lock:
            self.is_stopped = True
            for where in self._wheres:
                where[2] = 1
            self._jobs.clear()
            self._has_work.notify_all()
            self._is_ready.notify_all()
        # The collector may run this in a thread of the crew while it holds the lock that another one waits for.
        if threading.current_thread() in self._threads:
            return
        for thread in self._threads:
            thread.join(HUNG_PATIENCE_SECONDS if self._hung else None)

    def _check_timeout(self, timeout: float) -> None:
        self._hung = True
        cause = TimeoutError(f"not finished after {timeout:g} s of waiting for its batch")
        if self._jobs:
            awaited = self._jobs[0].loading
            at = [where for where in self._wheres if where[0] >= 0 and where[0] in awaited.numbers]
            if at:
                raise awaited.loader.error_at(at[0], cause) from cause
        raise_from(self._error_at_beginning(cause), cause)

    def _work(self, where: Where) -> None:
        with forks.held_off():
            while True:
                forks.let_through()
                with self._lock:
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
            job = self._find_unclaimed()
            if job is not None:
                return job
            if not self._is_beginning:
                if self._is_exhausted:
                    return None
                if self._room > 0:
                    self._room -= 1
                    self._is_beginning = True
                    return None
            with forks.allowed():
                self._has_work.wait()
        return None

    def _load(self, job: Job, first: int, last: int, where: Where) -> None:
        try:
            job.loading.load(first, last, where)
        except BaseException as raised:  # noqa: BLE001 - it belongs to the thread that waits for this batch
            job.errors.append((first, raised))
        where[0] = -1
        self._end_part(job, last - first)
