"""A batch that is being loaded: its records, its arrays, and the loader that fills them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from etl.loading.batch import Batch, make_batch
from etl.loading.buffer_pool import BufferPool
from etl.loading.sampler import Sampler
from etl.sources.record import RecordError
from etl.stages.cursor import IDLE, Cursor
from presave import Record

# The position of an iterator, as JSON values.
State = dict[str, Any]
# Shape of one record's value and dtype in the batch, by field name.
Fields = Mapping[str, tuple[tuple[int, ...], np.dtype]]
# A record after the pipeline, with flat fields (see `etl.stages.fields`), or the error of a record that failed.
Finished = Record | RecordError
# The smallest chunk of a batch that is worth handing to a worker: one record, an even share for each worker, or the
# whole batch.
Granularity = Literal["record", "share", "batch"]

NONE_FINISHED: Mapping[int, Finished] = {}
# Error message for an epoch that was superseded or closed.
ENDED = "this epoch was ended: the iterator was closed or another epoch started"
MAX_SHOWN = 3


@dataclass(frozen=True)
class BatchSpec:
    """The arrays that a batch needs.

    Attributes
    ----------
    fields : mapping of str to (shape, dtype)
        The shape of one record's value, and the dtype in the batch, for each field.
    finished : mapping of int to record or RecordError
        Records that had to be loaded to learn shapes and dtypes, by record index. `Loader.load` reuses them.
    is_finished : bool
        True if these are all, because the shapes depend on each.
    """

    fields: Fields
    finished: Mapping[int, Finished] = dataclasses.field(default_factory=dict)
    is_finished: bool = False


class Loader(Protocol):
    """Loads records of a data set into arrays. Threads share one loader; each worker process gets a pickled copy."""

    granularity: Granularity

    def plan(self, indices: NDArray[np.int64], epoch: int, cursor: Cursor) -> BatchSpec:
        """Return the names, shapes and dtypes of the arrays for a batch.

        Parameters
        ----------
        indices : int64 array of shape (rows,)
            The records of the batch.
        cursor : Cursor
            Updated as in `load` if records must be loaded to learn their shapes. Errors are then those of `load`, too.
        """

    def load(
        self,
        indices: NDArray[np.int64],
        epoch: int,
        out: Mapping[str, np.ndarray],
        cursor: Cursor,
        finished: Mapping[int, Finished] = NONE_FINISHED,
    ) -> Mapping[int, RecordError]:
        """Write records into `out`, one row each.

        Parameters
        ----------
        indices : int64 array of shape (rows,)
            The records to load.
        out : mapping of str to array of shape (rows, ...)
            One array for each field.
        cursor : Cursor
            Updated before each record and stage, so that a watchdog can name what hangs. Loading stops before the next
            record if `cursor.cancelled`.
        finished : mapping of int to record or RecordError
            Records that `plan` has loaded already, by record index.

        Returns
        -------
        mapping of int to RecordError
            The rows that were skipped, with the reason for each.

        Raises
        ------
        RecordError
            If a record fails and is not to be skipped.
        """

    def name_error(self, cursor: Cursor, cause: BaseException) -> RecordError:
        """Return an error for `cause` that names the record and stage at `cursor`."""


class Position(NamedTuple):
    """The end of a batch: its epoch, and the number of records of that epoch, over all ranks, up to there."""

    epoch: int
    records: int


class BatchPlan:
    """A batch that is being loaded, in chunks of rows and in any order.

    `batch` exists from the start; loading fills its arrays. If rows were skipped, call `drop_skipped` at the end.

    Parameters
    ----------
    indices : int64 array of shape (rows,)
        The records of the batch.
    repeated : int
        Number of records at the end of the batch that are repeated. `Batch.repeated` marks them.
    filler : _Filler, optional
        Makes another batch if all rows are skipped.
    """

    def __init__(
        self,
        loader: Loader,
        indices: NDArray[np.int64],
        epoch: int,
        pool: BufferPool,
        capacity: int,
        cursor: Cursor,
        repeated: int = 0,
        after: Position | None = None,
        filler: _Filler | None = None,
    ) -> None:
        self.loader = loader
        self.indices = indices
        self.epoch = epoch
        self.repeated = repeated
        self.after: Any = after
        self.rows = len(indices)
        self.granularity = loader.granularity
        self._filler = filler
        self.skipped: dict[int, RecordError] = {}
        spec = loader.plan(indices, epoch, cursor)
        cursor.record = IDLE
        self.finished, self.is_finished = spec.finished, spec.is_finished
        self.arrays: dict[str, np.ndarray] = {}
        for name, (shape, dtype) in spec.fields.items():
            self.arrays[name] = pool.empty(self.rows, capacity, shape, dtype)
        marks = np.arange(self.rows) >= self.rows - repeated if repeated else None
        self.batch: Batch | None = make_batch(self.arrays, marks)

    def load(self, first: int, last: int, cursor: Cursor) -> None:
        """Load rows of the batch, see `Loader.load`; raises `RecordError` if one fails and is not to be skipped."""
        out = {}
        for name, array in self.arrays.items():
            out[name] = array[first:last]
        skipped = self.loader.load(self.indices[first:last], self.epoch, out, cursor, self.finished)
        for row, error in skipped.items():
            self.skipped[first + row] = error

    def drop_skipped(self, cursor: Cursor) -> None:
        """Remove the skipped rows from `batch`.

        If no row is left, it becomes a batch of repeated records from `filler`, or None if there is no filler. Raises
        `RecordError` if no record of the epoch can be loaded.
        """
        kept = [row for row in range(self.rows) if row not in self.skipped]
        marks = np.array(kept) >= self.rows - self.repeated
        arrays = {name: array[kept] for name, array in self.arrays.items()}
        self.batch = make_batch(arrays, marks if marks.any() else None) if kept else None
        self.arrays = {}
        if self.batch is None and self._filler is not None:
            self.batch = self._filler.fill(self, cursor)


class ReadyBatch:
    """A finished batch that takes the place of a `BatchPlan`; it has no rows to load."""

    def __init__(self, batch: Any, after: Any = None) -> None:
        self.batch: Any = batch
        self.after: Any = after
        self.rows = self.repeated = 0
        self.granularity: Granularity = "batch"
        self.skipped: dict[int, RecordError] = {}

    def load(self, first: int, last: int, cursor: Cursor) -> None:
        """Load nothing."""

    def drop_skipped(self, cursor: Cursor) -> None:
        """Drop nothing."""


AnyPlan = BatchPlan | ReadyBatch


def plan_epoch(
    sampler: Sampler, loader: Loader, epoch: int, position: int, pool: BufferPool, cursor: Cursor
) -> Iterator[BatchPlan]:
    """Yield a plan for each batch in the rest of an epoch."""
    capacity = min(sampler.batch_size, sampler.records)
    filler = _Filler(sampler, loader, epoch, pool) if sampler.has_equal_ranks else None
    for indices, repeated, after in sampler.batches(epoch, position):
        yield BatchPlan(loader, indices, epoch, pool, capacity, cursor, repeated, Position(epoch, after), filler)


class SkippedRecords:
    """Collects the errors of the records that were skipped in one epoch, for a warning at its end."""

    def __init__(self) -> None:
        self._count = 0
        self._first: list[RecordError] = []

    def add(self, plan: AnyPlan) -> None:
        """Add the records that one batch skipped, except repeated ones, which are counted in another batch."""
        errors = [error for row, error in sorted(plan.skipped.items()) if row < plan.rows - plan.repeated]
        self._count += len(errors)
        self._first += errors[: max(0, MAX_SHOWN - len(self._first))]

    def warn(self, epoch: int, records: int) -> None:
        """Warn with the number of skipped records and the first few errors, if there are any."""
        if not self._count:
            return
        shown = "; ".join(map(str, self._first)) + ("; ..." if self._count > MAX_SHOWN else "")
        warnings.warn(
            f"epoch {epoch} left out {self._count:,} of {records:,} records: {shown}", UserWarning, stacklevel=3
        )


class _Filler:
    """Loads repeated records in place of a batch whose own were all skipped, so that all ranks get as many batches.

    The epoch's order is divided into windows of as many records as the batch has. The new batch holds the records that
    can be loaded of the first window that has any, so it is the same for every strategy, and after a resume.
    """

    def __init__(self, sampler: Sampler, loader: Loader, epoch: int, pool: BufferPool) -> None:
        self._sampler = sampler
        self._loader = loader
        self._epoch = epoch
        self._pool = pool
        # The start of the first window with a good record, by window size, so that bad records are tried once an epoch.
        self._first: dict[int, int] = {}

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return self._sampler.order(self._epoch)

    def fill(self, bad: BatchPlan, cursor: Cursor) -> Batch:
        """Return a batch in place of `bad`, marked as repeated; raises `RecordError` if no record can be loaded."""
        size = bad.rows
        for first in range(self._first.get(size, 0), len(self._order), size):
            indices = self._order[first : first + size]
            bad.indices = indices  # for a timeout, which names one that is being loaded
            plan = BatchPlan(self._loader, indices, self._epoch, self._pool, size, cursor, repeated=len(indices))
            plan.load(0, plan.rows, cursor)
            if plan.skipped:
                plan.drop_skipped(cursor)
            if plan.batch is not None:
                self._first[size] = first
                return plan.batch
        error = bad.skipped[0]
        ranks = f"rank {self._sampler.rank} of {self._sampler.world_size}"
        cause = (
            f"{error.cause}; no other record of its batch or of epoch {self._epoch} can be loaded in its place, and "
            f"without this batch {ranks} would get one fewer than the others: repair the records, or call "
            'shard(..., uneven="allow")'
        )
        raise RecordError(error.source, error.record, error.stage, error.name, cause)
