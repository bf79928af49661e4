"""The processes behind `AsyncIterator`: all of them load each batch, in memory that they share."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import numpy as np

from etl.loading.batch_plan import AnyPlan, BatchPlan
from etl.loading.records import raise_from
from etl.prefetch.prefetcher import ErrorNamer, PendingBatch, Prefetcher
from etl.prefetch.worker_main import Failed, Ready, Task
from etl.prefetch.worker_pool import WorkerPool
from etl.prefetch.worker_process import Chunk, Worker
from etl.stages.cursor import IDLE, Cursor
from presave import forks, interrupts

# Chunks that a worker has at a time: while it loads one, the next is waiting for it.
CHUNKS_AHEAD = 2
# Most chunks of a batch for each worker: a chunk costs 0.1 to 0.2 ms, most of it to wake the worker.
MAX_CHUNKS = 2


class ProcessPrefetcher(Prefetcher):
    """Loads the batches of one epoch in the worker processes of `pool`.

    A thread of this process plans batches, hands out their chunks and receives answers. It also loads the records that
    replace a batch whose own were all skipped, and batches of which planning needs all records. Workers that were lost
    in the previous epoch are replaced. Chunks that the others still load for that epoch are not waited for. The arrays
    of `plans` must be in the pool's memory. For `make_thread` see `ThreadPrefetcher`.
    """

    def __init__(
        self,
        plans: Iterator[AnyPlan],
        prefetch_size: int,
        cursor: Cursor,
        name_error: ErrorNamer,
        pool: WorkerPool,
        make_thread: Callable[..., interrupts.AnyWorker],
    ) -> None:
        super().__init__(plans, prefetch_size, cursor, name_error)
        pool.check_owner()
        self._pool = pool
        # Workers that may be replaced if they are lost between two records. A limit, because a worker that always dies
        # at once would be replaced forever.
        self._replacements = len(pool.workers)
        # The record being loaded to plan a batch at the last timeout, if workers had not started by then.
        self._planned_with: int | None = None
        self._threads = [make_thread(self._direct, name="etl-prefetch")]

    def _direct(self) -> None:
        try:
            with forks.held_off():
                self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                with self._pool.lease:
                    self._pool.renew([worker for worker in self._pool.workers if worker.has_ended()])
                    for worker in self._pool.workers:
                        worker.update_settings()
                while not self.is_stopped:
                    self._take_turn()
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits for a batch
            self._fail(error)
        finally:
            with self._lock:
                bell, self._bell = self._bell, -1
            if bell >= 0:
                os.close(bell)

    def _take_turn(self) -> None:
        """Plan and hand out as many batches as there is room for, then wait for workers or the consumer."""
        forks.let_through()
        while self._may_plan():
            self._plan_next()
            self._load_planned()
            self._hand_out()
        self._hand_out()
        if self._skipping:
            self._is_planning = True  # for `_check_timeout`: the answers of workers wait for this, too
            self._drop_skipped(self._planning)
            self._is_planning = False
        with self._pool.lease:
            if self.is_stopped:  # what workers send from now on may be for the next epoch
                return
            with forks.allowed():
                answered, ended = self._pool.wait(self._bell)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._bell)
            for worker in answered:
                self._receive(worker)
            for worker in ended:
                self._lose(worker, worker.death())

    def _may_plan(self) -> bool:
        with self._lock:
            may = self._room > 0 and not self._is_exhausted and not self.is_stopped
            if may:
                self._room -= 1
                self._is_planning = True
            return may

    def _load_planned(self) -> None:
        """Load the batch that was planned last if its shapes depend on each record, so that all were loaded.

        Workers would load them again, and get other ones if they are random.
        """
        with self._lock:
            pending = self._untaken[-1] if self._untaken else None
            if pending is None or not isinstance(plan := pending.plan, BatchPlan) or not plan.is_finished:
                return
            self._untaken.pop()
            pending.next_row = plan.rows
        try:
            plan.load(0, plan.rows, self._planning)
        except BaseException as raised:  # noqa: BLE001 - it belongs to the thread that waits for this batch
            pending.errors.append((0, raised))
        self._planning.record = IDLE
        self._end_chunk(pending, plan.rows)

    def _hand_out(self) -> None:
        """Give every worker its chunks: each gets one before any gets a second."""
        if not self._untaken:
            return
        with self._pool.lease:
            workers = self._pool.alive
            for ahead in range(CHUNKS_AHEAD):
                for worker in workers:
                    if len(worker.chunks) > ahead:
                        continue
                    with self._lock:
                        if not self._untaken:
                            return
                        chunk = self._take_chunk(self._untaken[0], len(workers))
                        worker.chunks.append(chunk)
                    self._send(worker, chunk)

    def _take_chunk(self, pending: PendingBatch, workers: int) -> Chunk:
        first, last = pending.take_chunk(workers, -(-pending.plan.rows // (MAX_CHUNKS * workers)))
        if last == pending.plan.rows:
            self._untaken.popleft()
        plan = pending.plan
        assert isinstance(plan, BatchPlan)  # noqa: S101 - a `ReadyBatch` has no rows
        indices = self._pool.memory.allocate(8 * (last - first)).view(np.int64)
        indices[:] = plan.indices[first:last]
        return Chunk(self, pending, plan, first, last, indices)

    def _send(self, worker: Worker, chunk: Chunk) -> None:
        memory = self._pool.memory
        places = {name: memory.place(array[chunk.first : chunk.last]) for name, array in chunk.plan.arrays.items()}
        position = chunk.plan.after.records
        key = (*self._pool.key, chunk.plan.epoch, position, chunk.first)
        worker.send(Task(memory.place(chunk.indices), chunk.plan.epoch, places, self._pool.seeds, key))

    def _receive(self, worker: Worker) -> None:
        message = worker.receive()
        if message is None:
            self._lose(worker, worker.death())
        elif isinstance(message, Ready):
            worker.ready_at = worker.heard
        elif isinstance(message, Failed) and not worker.is_ready:
            self._lose(worker, message.unpack())
        else:
            with self._lock:
                chunk = worker.chunks.popleft()
            if chunk.prefetcher is not self:
                return
            if isinstance(message, Failed):
                chunk.pending.errors.append((chunk.first, message.unpack()))
            else:
                for row, error in message.skipped.items():
                    chunk.plan.skipped[chunk.first + row] = error
            self._end_chunk(chunk.pending, chunk.last - chunk.first)

    def _lose(self, worker: Worker, cause: BaseException) -> None:
        """Handle the end of `worker`: its current batch fails; if no worker is left, all unfinished batches fail.

        A worker that was loading no record has lost nothing, and is replaced.
        """
        worker.is_lost = True
        with self._lock:
            chunks = list(worker.chunks)
        is_at_another = bool(chunks) and chunks[0].prefetcher is not self  # of an earlier epoch
        if is_at_another or (worker.is_idle and self._replacements > 0):
            self._replacements -= not is_at_another
            self._replace(worker, [chunk for chunk in chunks if chunk.prefetcher is self])
            return
        error = worker.name_error(cause) if chunks and worker.is_ready else cause
        if chunks:
            chunks[0].pending.errors.append((chunks[0].first, error))
        else:
            with self._lock:
                self._plan_error, self._is_exhausted = error, True
                self._is_ready.notify_all()
        for chunk in chunks:
            self._end_chunk(chunk.pending, chunk.last - chunk.first)
        while not self._pool.alive:
            with self._lock:
                if not self._untaken:
                    return
                pending = self._untaken.popleft()
                first = pending.next_row
            pending.errors.append((first, error))
            self._end_chunk(pending, pending.plan.rows - first)

    def _replace(self, worker: Worker, chunks: list[Chunk]) -> None:
        [renewed] = self._pool.renew([worker])
        with self._lock:
            renewed.chunks.extend(chunks)
        for chunk in chunks:
            self._send(renewed, chunk)

    def _stop(self) -> None:
        # Workers finish the chunks that they have, which nothing waits for.
        super()._stop()
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    def _check_timeout(self, timeout: float) -> None:
        cause = TimeoutError(f"not finished after {timeout:g} s of waiting for its batch")
        if self._pool.is_starting:
            # The thread that would learn that workers have started may itself hang, in a record that it loads to plan a
            # batch: an error is raised if that is the same record as at the last timeout.
            error = self._name_error(self._planning, cause)
            before, self._planned_with = self._planned_with, getattr(error, "record", None)
            if before is None or before != self._planned_with:
                return
            self._hung = True
            raise_from(error, cause)
        busy = sorted((worker for worker in self._pool.alive if worker.chunks), key=lambda worker: worker.heard)
        # A worker may have had to start, or to finish what was left of another epoch.
        since = [each.ready_at if each.chunks[0].prefetcher is self else each.heard for each in busy]
        if any(moment > time.monotonic() - timeout for moment in since):
            return
        self._hung = self._is_planning
        if self._is_planning and self._planning.record != IDLE and all(each.cursor.record == IDLE for each in busy):
            raise_from(self._name_error(self._planning, cause), cause)  # their answers wait for it
        at_next = [
            worker for worker in busy if any(chunk.pending in list(self._pending)[:1] for chunk in worker.chunks)
        ]
        error = (at_next or busy)[0].name_error(cause) if busy else self._name_error(self._planning, cause)
        # All of them, because any may hang. The next epoch starts others.
        for worker in busy:
            worker.kill()
        raise_from(error, cause)
