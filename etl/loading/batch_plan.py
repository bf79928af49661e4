"""One batch in the making, in parts that several workers can do at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, MutableSequence
from typing import Any, Protocol

import numpy as np

from etl.loading.batch import Batch
from etl.loading.buffer_pool import Workspaces
from etl.sources.record import RecordError

# Where an iterator stands, as JSON values.
State = dict[str, Any]
# For each field of a batch the shape of one record's value, and the dtype.
Layout = Mapping[str, tuple[tuple[int, ...], np.dtype]]
# Where a worker is: the number of a record, -1 between two parts; how many stages come before the one that has it (see
# `Pipeline`), -1 for reading; and 1 where the worker is to stop before the next record.
Where = MutableSequence[int]


def nowhere() -> Where:
    """Of a worker that has not begun."""
    return [-1, -1, 0]


# What an epoch says that was ended by another one or by `close`.
ENDED = "this epoch was ended: the iterator was closed or another epoch started"


class Loader(Protocol):
    """Loads any records of a data set into arrays. May be used by several threads at once, and pickled."""

    def lay_out(self, numbers: np.ndarray, epoch: int, where: Where) -> Layout:
        """What a batch of the records `numbers` looks like; raises as `load` does. Kept until the batch is loaded.

        Where it must load records for that, it sets `where` as `load` does.
        """

    def task_records(self, records: int, workers: int) -> int:
        """The smallest number of records that is worth a task of its own, in a batch of `records`."""

    def load(
        self, numbers: np.ndarray, epoch: int, arrays: Mapping[str, np.ndarray], where: Where
    ) -> Mapping[int, RecordError]:
        """Write the records `numbers` into `arrays`, row after row; the rows of those that were left out.

        Raises `RecordError` for a record that fails, unless such are to be left out. Ends early where `where` says so.
        """

    def to_batch(self, arrays: Mapping[str, np.ndarray]) -> Batch:
        """The batch in `arrays`."""

    def error_at(self, where: Where, cause: BaseException) -> RecordError:
        """The error for what happened to a worker that was there."""


class Loading:
    """The batch of the records `numbers`, which are loaded part by part in any order. The last `repeated` of them are
    marked in the batch.
    """

    def __init__(
        self,
        loader: Loader,
        numbers: np.ndarray,
        epoch: int,
        workspaces: Workspaces,
        most: int,
        workers: int,
        where: Where,
        repeated: int = 0,
    ) -> None:
        self.loader = loader
        self.numbers = numbers
        self.repeated = repeated
        self.epoch = epoch
        # Kept until the batch is done: with it goes what the loader has loaded already to find it out.
        self._layout = loader.lay_out(numbers, epoch, where)
        where[0] = -1
        self.arrays = {
            name: workspaces.empty(len(numbers), most, shape, dtype) for name, (shape, dtype) in self._layout.items()
        }
        self.task_records = loader.task_records(len(numbers), workers)
        self.skipped: dict[int, RecordError] = {}

    def __len__(self) -> int:
        """Records to load."""
        return len(self.numbers)

    def load(self, first: int, last: int, where: Where) -> None:
        """Load its records from `first` to `last`; raises `RecordError` for one that fails."""
        arrays = {name: array[first:last] for name, array in self.arrays.items()}
        for row, error in self.loader.load(self.numbers[first:last], self.epoch, arrays, where).items():
            self.skipped[first + row] = error

    def finish(self) -> Batch | None:
        """The batch, once all records are loaded; None where all of them were left out."""
        if not self.skipped and not self.repeated:
            return self.loader.to_batch(self.arrays)
        kept = [row for row in range(len(self)) if row not in self.skipped]
        if not kept:
            return None
        arrays = {name: array[kept] for name, array in self.arrays.items()} if self.skipped else self.arrays
        repeated = np.array(kept) >= len(self) - self.repeated
        return dataclasses.replace(self.loader.to_batch(arrays), repeated=repeated if repeated.any() else None)
