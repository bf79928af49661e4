"""Batches that an iterator makes itself, for `AsyncIterator` to load ahead of the caller."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from inspect import GEN_RUNNING, getgeneratorstate
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etl.iterators.iterator import BatchIterator, close_epoch
from etl.iterators.user_loader import UserLoaderIterator
from etl.loading.batch_plan import ReadyBatch, SkippedRecords, State
from etl.loading.buffer_pool import BufferPool
from etl.stages.cursor import IDLE, Cursor

_END: Any = object()


class WholeBatches:
    """A user-defined iterator, or one over any iterable, with the methods by which `AsyncIterator` loads ahead.

    Each batch comes whole, from one thread: there is no `loader` of its records. Where `IndexedIterator` manages memory
    or warns of skipped records, there is nothing to do, because the iterator does that itself.
    """

    loader = None

    def __init__(self, iterator: BatchIterator, name: str) -> None:
        self._iterator = iterator
        # Told its next epoch when the caller has reached the end; any other iterator counts its epochs itself.
        self._user_loader = iterator if isinstance(iterator, UserLoaderIterator) else None
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
        batches = iter(self._iterator) if self._user_loader is None else self._user_loader.begin()
        self._epoch = self._ready(batches, cursor)
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
        return after

    def is_last(self, after: State | None) -> bool:  # noqa: ARG002
        """Return False: nothing but a state tells whether a batch is the last, see `AheadIterator`."""
        return False

    def end_epoch(self, epoch: int, skipped: SkippedRecords) -> None:  # noqa: ARG002
        """Tell a user's loader the next epoch, after the last batch was handed out."""
        if self._user_loader is not None:
            self._user_loader.advance()

    def hold_batches(self, batches: int, pool: BufferPool | None = None) -> None: ...

    def allocate_with(self, allocate: Callable[[int], NDArray[np.uint8]]) -> None: ...

    def name_error(self, cursor: Cursor, cause: BaseException) -> BaseException:
        """Return a `TimeoutError` for `cause` that names the batch: the iterator's records are unknown."""
        return cause if cursor.record == IDLE else TimeoutError(f"batch {cursor.record} of {self._name}: {cause}")
