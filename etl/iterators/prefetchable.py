"""The interface through which `AsyncIterator` loads the batches of an iterator ahead of the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from etl.iterators.iterator import BatchIterator, close_epoch
from etl.loading.batch import Batch
from etl.loading.batch_plan import AnyPlan, Loader, ReadyBatch, SkippedRecords, State
from etl.loading.buffer_pool import BufferPool
from etl.stages.cursor import Cursor


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

    def __init__(self, iterator: BatchIterator) -> None:
        self._iterator = iterator

    def plans(self, cursor: Cursor, pool: BufferPool | None = None) -> Iterator[ReadyBatch]:  # noqa: ARG002
        """Begin the next epoch and yield its batches, already loaded."""
        return self._ready(iter(self._iterator))

    def _ready(self, batches: Iterator[Any]) -> Iterator[ReadyBatch]:
        can_resume = getattr(self._iterator, "can_resume", True)
        try:
            for number, batch in enumerate(batches):
                if batch is None:
                    raise ValueError(f"batch {number} of the epoch is None")
                yield ReadyBatch(batch, self._iterator.state_dict() if can_resume else None)
                del batch  # its memory can be reused as soon as the caller drops it
        finally:
            close_epoch(batches, self._iterator)

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

    def name_error(self, cursor: Cursor, cause: BaseException) -> BaseException:  # noqa: ARG002
        """Return `cause`: the iterator's records are unknown."""
        return cause
