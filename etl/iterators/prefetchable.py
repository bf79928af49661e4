"""The interface through which `AsyncIterator` loads the batches of an iterator ahead of the caller."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from inspect import GEN_RUNNING, getgeneratorstate
from itertools import count
from typing import Any, Protocol

import numpy as np

from etl.iterators.iterator import BatchIterator, close_epoch
from etl.loading.batch import Batch
from etl.loading.batch_plan import AnyPlan, Loader, ReadyBatch, SkippedRecords, State
from etl.loading.buffer_pool import BufferPool
from etl.stages.cursor import IDLE, Cursor

_END: Any = object()


class Prefetchable(Protocol):
    """Batches that can be loaded ahead of the caller.

    Attributes
    ----------
    loader : Loader or None
        Loads the records of a batch, in chunks. None if batches can only be made whole, by one thread.
    reuse : bool
        True if the memory of a batch may be reused.
    """

    @property
    def loader(self) -> Loader | None: ...

    @property
    def reuse(self) -> bool: ...

    def plans(self, cursor: Cursor, pool: BufferPool | None = None) -> Iterator[AnyPlan]:
        """Begin the next epoch and yield a plan for each of its batches.

        `cursor` is set to each record that has to be loaded to plan a batch. Arrays come from `pool`, if given, instead
        of the iterator's own memory.
        """

    def state_after(self, after: Any) -> State:
        """Return the state of the iterator after a batch, from the `after` of its plan."""

    def end_epoch(self, skipped: SkippedRecords) -> None:
        """Advance to the next epoch, and warn about the records that this epoch has skipped."""

    def hold_batches(self, batches: int) -> None:
        """Keep the memory of this many batches, besides the one that the caller holds, for reuse."""

    def allocate_with(self, allocate: Callable[[int], np.ndarray]) -> None:
        """Put batches into memory from `allocate(nbytes)`, a uint8 array of shape `(nbytes,)`."""

    def fill(self, plan: AnyPlan) -> Batch | None:
        """Return a batch in place of `plan`, whose records were all skipped; None if none is needed."""

    def name_error(self, cursor: Cursor, cause: BaseException) -> BaseException:
        """Return an error for `cause` that names the record at `cursor`, or `cause` if there is none."""


class WholeBatches:
    """A user-defined iterator, or one over any iterable, as a `Prefetchable`: each batch comes whole."""

    loader = None
    reuse = False

    def __init__(self, iterator: BatchIterator, name: str) -> None:
        self._iterator = iterator
        self._name = name
        # The epoch that was begun last, with its cursor.
        self._epoch: Generator[ReadyBatch, None, None] | None = None
        self._cursor: Cursor | None = None

    def plans(self, cursor: Cursor, pool: BufferPool | None = None) -> Iterator[ReadyBatch]:  # noqa: ARG002
        """Begin the next epoch and yield its batches, already loaded.

        Raises `RuntimeError` if the thread of the epoch before still waits for a batch: two threads must not advance an
        iterable.
        """
        if self._epoch is not None and self._cursor is not None and getgeneratorstate(self._epoch) == GEN_RUNNING:
            raise RuntimeError(
                f"{self._name} cannot begin an epoch: a thread of the one before still waits for its batch "
                f"{self._cursor.record}, and must not be joined by another; iterate again when that batch is there, or "
                "make a new iterator"
            )
        self._cursor = cursor
        self._epoch = self._ready(iter(self._iterator), cursor)
        return self._epoch

    def _ready(self, batches: Iterator[Any], cursor: Cursor) -> Generator[ReadyBatch, None, None]:
        can_resume = getattr(self._iterator, "can_resume", True)
        try:
            for cursor.record in count():
                batch = next(batches, _END)
                if batch is _END:
                    break
                if batch is None:
                    raise ValueError(f"batch {cursor.record} of the epoch is None")
                ready = ReadyBatch(batch, self._iterator.state_dict() if can_resume else None)
                del batch  # its memory can be reused as soon as the caller drops it
                yield ready
                del ready
        finally:
            close_epoch(batches, self._iterator)
            cursor.record = IDLE

    def state_after(self, after: State) -> State:
        """Return `after`, which already is a state."""
        return after

    def end_epoch(self, skipped: SkippedRecords) -> None:
        """Do nothing: the iterator has ended its epoch itself."""

    def hold_batches(self, batches: int) -> None:
        """Do nothing: the iterator has its own memory."""

    def allocate_with(self, allocate: Callable[[int], np.ndarray]) -> None:
        """Do nothing: the iterator has its own memory."""

    def fill(self, plan: AnyPlan) -> None:
        """Do nothing: the iterator leaves out no batch."""

    def name_error(self, cursor: Cursor, cause: BaseException) -> BaseException:
        """Return a `TimeoutError` for `cause` that names the batch: the iterator's records are unknown."""
        return cause if cursor.record == IDLE else TimeoutError(f"batch {cursor.record} of {self._name}: {cause}")
