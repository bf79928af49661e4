"""The processes behind `AsyncIterator`: each batch is spread over all of them, and made of memory that they share."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import numpy as np

from etl.loading.batch_plan import Loading, State
from etl.prefetch.prefetcher import HUNG_PATIENCE_SECONDS, Crew, ErrorAtBeginning, Job, raise_from
from etl.prefetch.worker_main import Failed, Ready, Task
from etl.prefetch.worker_pool import WorkerPool
from etl.prefetch.worker_process import Part, Worker
from presave import forks

# Parts that a worker has at a time: while it loads one, the next is there already.
PARTS_AHEAD = 2
# How many parts of a batch there are for each worker, at most: one costs 0.1 to 0.2 ms, most of it to wake the worker.
MOST_PARTS = 2


class ProcessCrew(Crew):
    """Has the workers of `pool` load the batches of one epoch. The arrays of `loadings` are in the pool's memory.

    A thread of this process begins batches, hands out their parts and hears when these are loaded. Workers that were
    lost in the epoch before are renewed; what others of them are still loading for it is not waited for.
    """

    def __init__(
        self,
        loadings: Iterator[tuple[Loading, State]],
        prefetch_size: int,
        error_at_beginning: ErrorAtBeginning,
        pool: WorkerPool,
    ) -> None:
        super().__init__(loadings, prefetch_size, error_at_beginning)
        pool.check_owner()
        pool.renew([worker for worker in pool.workers if worker.has_ended()])
        self._pool = pool
        # How many workers that were lost between two records may be replaced; one that dies at once would be for ever.
        self._replacements = len(pool.workers)
        # The record that was loaded to lay out a batch when the last timeout was up, if the workers were not there.
        self._laying_out: int | None = None
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._direct, name="etl-prefetch", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            os.close(self._bell)
            raise

    def _stop(self) -> None:
        # Workers go on with the parts they have, which nobody waits for.
        with self._lock:
            self.is_stopped = True
            self._jobs.clear()
            self._make_known()
            self._is_ready.notify_all()
        # The collector may run this in the crew's own thread.
        if threading.current_thread() is not self._thread:
            self._thread.join(HUNG_PATIENCE_SECONDS if self._hung and self._is_beginning else None)

    def _make_known(self) -> None:
        super()._make_known()
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    def _check_timeout(self, timeout: float) -> None:
        cause = TimeoutError(f"not finished after {timeout:g} s of waiting for its batch")
        if self._pool.is_starting:
            # Which it is for as long as the thread that would hear of its start loads a record to lay out a batch.
            error = self._error_at_beginning(cause)
            before, self._laying_out = self._laying_out, getattr(error, "record", None)
            if before is None or before != self._laying_out:
                return
            self._hung = True
            raise_from(error, cause)
        self._hung = True
        busy = sorted((worker for worker in self._pool.alive if worker.parts), key=lambda worker: worker.heard)
        at_next = [worker for worker in busy if any(part.job in list(self._jobs)[:1] for part in worker.parts)]
        error = (at_next or busy)[0].error_at_first_part(cause) if busy else self._error_at_beginning(cause)
        # Whichever of them hang, the next epoch has others.
        for worker in busy:
            worker.kill()
        raise_from(error, cause)

    def _direct(self) -> None:
        try:
            with forks.held_off():
                while not self.is_stopped:
                    self._take_turn()
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits for a batch
            self._fail(error)
        finally:
            with self._lock:
                os.close(self._bell)
                self._bell = -1

    def _take_turn(self) -> None:
        """Begin and hand out what there is room for, and wait until there is something to do again."""
        forks.let_through()
        while self._may_begin():
            self._begin()
            self._hand_out()
        self._hand_out()
        # What workers have to say is for the crew that came after this one, if a record hung until that did.
        if self.is_stopped:
            return
        with forks.allowed():
            heard, ended = self._pool.wait(self._bell)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        for worker in heard:
            self._hear(worker)
        for worker in ended:
            self._lose(worker, worker.death())

    def _may_begin(self) -> bool:
        with self._lock:
            may = self._room > 0 and not self._is_exhausted and not self.is_stopped
            if may:
                self._room -= 1
                self._is_beginning = True
            return may

    def _hand_out(self) -> None:
        """Give every worker the parts that it is to have, the first to all of them before the second to any."""
        workers = self._pool.alive
        for ahead in range(PARTS_AHEAD):
            for worker in workers:
                if len(worker.parts) > ahead:
                    continue
                with self._lock:
                    job = self._find_unclaimed()
                    if job is None:
                        return
                    least = -(-len(job.loading) // (MOST_PARTS * len(workers)))
                    part = self._claim(job, len(workers), least)
                    worker.parts.append(part)
                self._send(worker, part)

    def _claim(self, job: Job, workers: int, least: int) -> Part:
        first, last = job.claim(workers, least)
        numbers = self._pool.memory.allocate(8 * (last - first)).view(np.int64)
        numbers[:] = job.loading.numbers[first:last]
        return Part(self, job, first, last, numbers)

    def _send(self, worker: Worker, part: Part) -> None:
        loading, memory = part.job.loading, self._pool.memory
        places = {name: memory.place(array[part.first : part.last]) for name, array in loading.arrays.items()}
        worker.send(Task(memory.place(part.numbers), loading.epoch, places))

    def _hear(self, worker: Worker) -> None:
        message = worker.receive()
        if message is None:
            self._lose(worker, worker.death())
        elif isinstance(message, Ready):
            worker.is_ready = True
        elif isinstance(message, Failed) and not worker.is_ready:
            self._lose(worker, message.unpack())
        else:
            with self._lock:
                part = worker.parts.popleft()
            if part.crew is not self:
                return
            if isinstance(message, Failed):
                part.job.errors.append((part.first, message.unpack()))
            else:
                for row, error in message.skipped.items():
                    part.job.loading.skipped[part.first + row] = error
            self._end_part(part.job, part.last - part.first)

    def _lose(self, worker: Worker, cause: BaseException) -> None:
        """`worker` has ended: the batch that it was at has failed, and with no worker left all that are not loaded.

        One that was at no record has lost nothing, and is replaced.
        """
        worker.is_lost = True
        with self._lock:
            parts = list(worker.parts)
        is_at_another = bool(parts) and parts[0].crew is not self  # a batch that nobody waits for
        if is_at_another or (worker.is_idle and self._replacements > 0):
            self._replacements -= not is_at_another
            self._replace(worker, [part for part in parts if part.crew is self])
            return
        error = worker.error_at_first_part(cause) if parts and worker.is_ready else cause
        if parts:
            parts[0].job.errors.append((parts[0].first, error))
        else:
            with self._lock:
                self._begin_error, self._is_exhausted = error, True
        for part in parts:
            self._end_part(part.job, part.last - part.first)
        while not self._pool.alive:
            with self._lock:
                job = self._find_unclaimed()
                if job is None:
                    return
                first, job.unclaimed = job.unclaimed, len(job.loading)
            job.errors.append((first, error))
            self._end_part(job, len(job.loading) - first)

    def _replace(self, worker: Worker, parts: list[Part]) -> None:
        [renewed] = self._pool.renew([worker])
        with self._lock:
            renewed.parts.extend(parts)
        for part in parts:
            self._send(renewed, part)

    def _fail(self, error: BaseException) -> None:
        """Nothing can be loaded any more."""
        with self._lock:
            self._begin_error, self._is_exhausted = error, True
            for job in self._jobs:
                if not job.is_done:
                    job.errors.append((0, error))
                    job.is_done = True
            self._is_ready.notify_all()
