"""Base class of iterators that load records by index: epochs, positions, resuming and sharding."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etl.arguments import whole_number
from etl.iterators.iterator import BatchIterator, refuse_next
from etl.loading.batch import Batch, register_pytree
from etl.loading.batch_plan import ENDED, AnyPlan, Loader, Position, SkippedRecords, State, plan_epoch
from etl.loading.buffer_pool import BufferPool
from etl.loading.sampler import IDENTITY, Sampler, Uneven
from etl.runtime.boundaries import batch_boundary
from etl.sources.identity import digest_difference
from etl.sources.record import RecordSequence, source_name
from etl.stages.cursor import IDLE, Cursor, ThreadCursor


class IndexedIterator(BatchIterator):
    """Iterates over records that a `Sampler` chooses and a `Loader` loads.

    The caller's thread loads them, or `AsyncIterator` does, through the methods that follow `wrap_loader`.
    """

    async_supported = True
    __next__ = refuse_next
    # The records that are read one by one; None if they come from a store.
    records: RecordSequence | None = None

    def __init__(self, sampler: Sampler, loader: Loader, dtype: str | None, *, reuse: bool = True) -> None:
        register_pytree()
        self._sampler = sampler
        self._loader = loader
        self._dtype = dtype
        self._pool = BufferPool(reuse)
        self._epoch = 0
        self._position = 0
        self._resume_at = 0
        self._running: object | None = None
        # Those of the running epoch, if it is loaded by the caller's thread.
        self._skipped = SkippedRecords()
        self._closed = False
        self._digests: Mapping[str, str] | None = None

    @property
    def batch_size(self) -> int:
        return self._sampler.batch_size

    @property
    def dtype(self) -> str | None:
        return self._dtype

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def rank(self) -> int:
        return self._sampler.rank

    @property
    def world_size(self) -> int:
        return self._sampler.world_size

    @property
    def was_reset(self) -> bool:
        """True if no epoch was begun since `set_epoch` or `load_state_dict` was called."""
        return self._running is None

    @property
    def seed(self) -> int:
        """Seed of the order of the records, and of random stages."""
        return self._sampler.seed

    @property
    def loader(self) -> Loader:
        """The loader of the records, for threads and processes to share."""
        return self._loader

    @property
    def reuse(self) -> bool:
        """True if the memory of a batch is reused."""
        return self._pool.reuse

    def __len__(self) -> int:
        return self._sampler.epoch_batches

    def __repr__(self) -> str:
        rank = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        place = f"{len(self):,} batches of {self.batch_size:,}, epoch {self.epoch}{rank}"
        return f"{type(self).__name__}({self._subject()}, {place})"

    def _subject(self) -> str:
        """Return what it loads, for its `repr`."""
        return repr(source_name(self.records))

    def __iter__(self) -> Iterator[Batch]:
        cursor = ThreadCursor()
        plans = self.plans(cursor)
        return self._batches(plans, cursor, self._running)

    def _batches(self, plans: Iterator[AnyPlan], cursor: Cursor, token: object) -> Iterator[Batch]:
        skipped = self._skipped
        while True:
            if self._running is not token:
                raise RuntimeError(ENDED)
            batch_boundary()
            plan = next(plans, None)
            if plan is None:
                break
            plan.load(0, plan.rows, cursor)
            if plan.skipped:
                skipped.add(plan)
                plan.drop_skipped(cursor)
            batch = plan.batch
            self._position = plan.after.records
            del plan  # or the memory of the batch would not be free for the next one
            if batch is not None:
                yield batch
            del batch
        self.end_epoch(self._epoch, skipped)

    def wrap_loader(self, wrap: Callable[[Loader], Loader]) -> None:
        """Load with `wrap(loader)` from now on, for instance to watch or slow down the loader."""
        self._loader = wrap(self._loader)

    def allocate_with(self, allocate: Callable[[int], NDArray[np.uint8]]) -> None:
        """From now on, put batches into memory from `allocate(nbytes)`, a uint8 array of shape `(nbytes,)`."""
        self._pool = BufferPool(self._pool.reuse, self._pool.max_free, allocate)

    def hold_batches(self, batches: int, pool: BufferPool | None = None) -> None:
        """Keep the memory of this many batches, besides the one that the caller holds, for reuse in this epoch.

        `pool` is that of `plans`.
        """
        (self._pool if pool is None else pool).max_free = batches + 1

    def plans(self, cursor: Cursor, pool: BufferPool | None = None) -> Iterator[AnyPlan]:
        """Begin the next epoch, which ends the one before, and yield a plan for each of its batches.

        `cursor` is set to each record that has to be loaded to plan a batch. Arrays come from `pool`, if given, instead
        of the iterator's own memory.
        """
        if self._closed:
            raise RuntimeError(f"{type(self).__name__} is closed")
        self.settle()
        self.hold_batches(1)
        self._position, self._resume_at = self._resume_at, 0
        self._running, self._skipped = object(), SkippedRecords()
        return self._plan_epoch(cursor, self._pool if pool is None else pool)

    def _plan_epoch(self, cursor: Cursor, pool: BufferPool) -> Iterator[AnyPlan]:
        return plan_epoch(self._sampler, self._loader, self._epoch, self._position, pool, cursor)

    def is_last(self, after: Any) -> bool:
        """Return whether the batch that ends at `after`, a `Position`, is the last of its epoch."""
        return self._sampler.is_over(after.records)

    def end_epoch(self, epoch: int, skipped: SkippedRecords) -> None:
        """Advance to the one after `epoch`, unless another was set meanwhile, and warn about the `skipped` records."""
        if not self.was_reset:
            self._epoch, self._position = epoch + 1, 0
        skipped.warn(epoch, self._sampler.records)  # last, because warnings may be errors

    def forget_skipped(self) -> None:
        """Count none of the records that this epoch has skipped: its caller has not received all that was read."""
        self._skipped = SkippedRecords()

    def settle(self) -> None:
        """End an epoch whose last batch was taken by a loop that asked for no other: `epoch` is then the next one."""
        if self._has_taken_last:
            self.end_epoch(self._epoch, self._skipped)

    @property
    def _has_taken_last(self) -> bool:
        return self._position > 0 and not self._resume_at and self._sampler.is_over(self._position)

    def name_error(self, cursor: Cursor, cause: BaseException) -> BaseException:
        """Return an error for `cause` that names the record at `cursor`, or `cause` if there is none."""
        return self._loader.name_error(cursor, cause) if cursor.record != IDLE else cause

    def set_epoch(self, epoch: int) -> None:
        epoch = whole_number("epoch", epoch, least=0)
        try:
            self.settle()
        finally:  # warnings may be errors
            self._reset(epoch, 0)

    def _reset(self, epoch: int, position: int) -> None:
        self._epoch, self._running = epoch, None
        self._position = self._resume_at = position

    def state_dict(self) -> State:
        return self.state_after(Position(self._epoch, self._position))

    def state_after(self, after: Any) -> State:
        """Return the state after the batch that ends at `after`, a `Position`."""
        epoch, records = after
        ended = self._sampler.ended(records)
        return {
            "epoch": epoch + 1 if ended else epoch,
            "position": 0 if ended else records,
            **self._sampler.identity,
            **({"digests": self._record_digests()} if self._record_digests() else {}),
        }

    @property
    def order_settings(self) -> State:
        """Everything that decides which records the next loop begins with, by name, equal on ranks that share an epoch.

        A batch that was taken from a loop that was left early does not count.
        """
        state = self.state_after(Position(self._epoch + self._has_taken_last, self._resume_at))
        # Not the identity of files: each machine may have copies of its own.
        digests = {name: digest for name, digest in state.pop("digests", {}).items() if name != "identity"}
        sampler = self._sampler
        sharing = {"batch_size": sampler.batch_size, "drop_last": sampler.drop_last, "uneven": sampler.uneven}
        return {**sharing, **state, "digests": digests}

    def load_state_dict(self, state: State) -> None:
        for name in IDENTITY:
            mine = self._sampler.identity.get(name)
            if state.get(name) != mine:
                raise ValueError(
                    f"the state was taken with {name}={state.get(name)!r}, this iterator has {name}={mine!r}"
                )
        differing = digest_difference(state.get("digests", {}), self._record_digests())
        if differing:
            raise ValueError(f"the state was taken over other records than this iterator has: their {differing} differ")
        epoch: Any = state.get("epoch")
        position = state.get("position")
        if not isinstance(position, int) or not 0 <= position <= self._sampler.records:
            raise ValueError(f"the state has position={position!r}, not one from 0 to {self._sampler.records} records")
        self._reset(whole_number("epoch", epoch, least=0), position)

    def _identify(self) -> Mapping[str, str]:
        """Return digests that identify the records; see `source_digests`."""
        return {}

    def _record_digests(self) -> Mapping[str, str]:
        if self._digests is None:
            self._digests = self._identify()
        return self._digests

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> Any:
        if self._sampler.world_size != 1:
            raise ValueError(f"this iterator is shard {self._sampler.rank} of {self._sampler.world_size} already")
        part = copy.copy(self)
        part._pool = BufferPool(self._pool.reuse)
        part._sampler = dataclasses.replace(self._sampler, rank=rank, world_size=world_size, uneven=uneven)
        part._running = None
        part._epoch += self._has_taken_last
        part._position = part._resume_at
        return part

    def close(self) -> None:
        self._closed = True
        self._running = None
        self._pool.clear()
