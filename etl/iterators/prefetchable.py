"""The part of an iterator that loads ahead of the caller needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from etl.iterators.iterator import BatchIterator
from etl.loading.batch import Batch
from etl.loading.batch_plan import AnyPlan, Loader, ReadyBatch, SkippedRecords, State
from etl.loading.buffer_pool import BufferPool
from etl.stages.cursor import Cursor


class Prefetchable(Protocol):
    """Batches that can be loaded ahead of the caller.

    Attributes
    ----------
    loader : Loader or None
        Loads the records of a batch, in chunks; None if batches come whole, which one thread can do.
    reuse : bool
        The memory of a batch may be used again.
    """

    @property
    def loader(self) -> Loader | None: ...

    @property
    def reuse(self) -> bool: ...

    def plans(self, cursor: Cursor, pool: BufferPool | None = None) -> Iterator[AnyPlan]:
        """Begin the next epoch and yield its batches, to be loaded.

        `cursor` is set to a record that has to be loaded in order to plan; `pool` is memory to use instead of its own.
        """

    def state_after(self, after: Any) -> State:
        """Return the state at `after`, the end of a plan."""

    def end_epoch(self, skipped: SkippedRecords) -> None:
        """Go on to the next epoch, and warn of the records that this one has skipped."""

    def hold_batches(self, batches: int) -> None:
        """Keep the memory of so many batches, besides the caller's own, to use it again."""

    def allocate_with(self, allocate: Callable[[int], np.ndarray]) -> None:
        """Make batches in memory from `allocate(nbytes)`."""

    def fill(self, plan: AnyPlan) -> Batch | None:
        """Return a batch in place of one whose records were all skipped; None if there need not be one."""

    def name_error(self, cursor: Cursor, cause: BaseException) -> BaseException:
        """Return an error for `cause` that names the record at `cursor`, or `cause` if there is none."""


class WholeBatches:
    """An iterator of the caller's own as a `Prefetchable`: its batches come whole."""

    loader = None
    reuse = False

    def __init__(self, iterator: BatchIterator) -> None:
        self._iterator = iterator

    def plans(self, cursor: Cursor, pool: BufferPool | None = None) -> Iterator[ReadyBatch]:  # noqa: ARG002
        """Begin the next epoch and yield its batches."""
        batches = iter(self._iterator)
        return (ReadyBatch(batch, self._iterator.state_dict()) for batch in batches)

    def state_after(self, after: State) -> State:
        """Return `after`, which is a state."""
        return after

    def end_epoch(self, skipped: SkippedRecords) -> None:
        """Nothing to do: the iterator has ended its epoch."""

    def hold_batches(self, batches: int) -> None:
        """Nothing to do: the iterator has its own memory."""

    def allocate_with(self, allocate: Callable[[int], np.ndarray]) -> None:
        """Nothing to do: the iterator has its own memory."""

    def fill(self, plan: AnyPlan) -> None:
        """Nothing to do: the iterator leaves out no batch."""

    def name_error(self, cursor: Cursor, cause: BaseException) -> BaseException:  # noqa: ARG002
        """Return `cause`: the records are the iterator's own affair."""
        return cause
