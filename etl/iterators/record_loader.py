"""Records to a batch: every field of every record written once, into its slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Literal

import numpy as np

from etl.batch import Batch
from etl.dtypes import is_floating
from etl.iterators.loading import Layout, Where
from etl.pipeline import Pipeline, StageError
from etl.record import Record, RecordError, record_error
from etl.records import read_record
from etl.stages.draw import Draw

FIELDS = ("features", "label", "features_mask", "labels_mask")
NOTHING_LEFT = Pipeline([])
READING = -1

OnError = Literal["raise", "skip"]


class RecordLoader:
    """Reads records one by one, applies `pipeline` to each, and stores the results in arrays, one for each field.

    Floating features, labels and masks take `dtype`; integers keep theirs. The first record tells names, shapes and
    dtypes; a later one that differs is an error. `seed` is that of random stages. Implements `Loader`.
    """

    def __init__(self, source: Any, pipeline: Pipeline, dtype: np.dtype, seed: int, on_error: OnError) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', not {on_error!r}")
        self._source = source
        self._pipeline = pipeline
        self._dtype = dtype
        self._seed = seed
        self._on_error = on_error
        self._layout: Layout | None = None
        # The record that told the layout, which is not worked on twice.
        self._first: tuple[int, int, Record] | None = None

    def task_records(self, records: int, workers: int) -> int:  # noqa: ARG002 - other loaders go by them
        """One: a record may take long."""
        return 1

    def lay_out(self, numbers: np.ndarray, epoch: int) -> Layout:
        """What batches look like, found out from the first record that does not fail."""
        if self._layout is None:
            # All records of the first batches may be such that are left out: any other tells the layout as well.
            for number in chain(numbers.tolist(), range(len(self._source))):
                try:
                    self._first = (number, epoch, self._finish_first(number, epoch))
                    break
                except RecordError:
                    if self._on_error == "raise":
                        raise
            else:
                first = int(numbers[0])
                self._first = (first, epoch, self._finish_first(first, epoch))
        assert self._layout is not None  # noqa: S101 - for the type checker
        return self._layout

    def load(
        self, numbers: np.ndarray, epoch: int, arrays: Mapping[str, np.ndarray], where: Where
    ) -> dict[int, RecordError]:
        """Write the records `numbers` into `arrays`; the rows of those left out."""
        # Bound by the pipeline: benchmarks/end_to_end.py measures it as `raw`.
        skipped = {}
        read = self.reader(numbers)
        for row, number in enumerate(numbers.tolist()):
            where[0], where[1] = number, READING
            try:
                slots = {name: array[row, ...] for name, array in arrays.items()}
                self._load_one(read, row, number, epoch, slots, where)
            except RecordError as error:
                if self._on_error == "raise":
                    raise
                # Its traceback would keep the memory of the batch.
                skipped[row] = RecordError(*error.args)
        return skipped

    def to_batch(self, arrays: Mapping[str, np.ndarray]) -> Batch:
        """The batch of `arrays`, named as the fields of a record."""
        return to_batch(arrays)

    def error_at(self, where: Where, cause: BaseException) -> RecordError:
        """The error for what happened to a worker that was there."""
        number, place = where[0], where[1]
        stage = "read" if place == READING else self._pipeline.name_at(place)
        return record_error(self._source, number, stage, cause)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_first": None}

    def reader(self, numbers: np.ndarray) -> Callable[[int], Record]:
        """What gives by its row each of the records `numbers` before the pipeline, or raises `RecordError`."""
        return lambda row: read_record(self._source, int(numbers[row]))

    def _load_one(
        self,
        read: Callable[[int], Record],
        row: int,
        number: int,
        epoch: int,
        slots: Mapping[str, np.ndarray],
        where: Where,
    ) -> None:
        first = self._first
        if first is not None and first[:2] == (number, epoch):
            self._first = None
            record, pipeline = first[2], NOTHING_LEFT
        else:
            record, pipeline = read(row), self._pipeline
        try:
            found = pipeline.write_into(record, slots, Draw(self._seed, epoch, number), where)
            if len(found) != len(slots) and any(name in found and name not in slots for name in FIELDS):
                raise ValueError(f"it has fields {', '.join(found)}, the records before it {', '.join(slots)}")
        except (StageError, ValueError, TypeError) as error:
            raise self._named(number, error) from _cause(error)

    def _finish_first(self, number: int, epoch: int) -> Record:
        record = self.reader(np.array([number]))(0)
        try:
            finished = self._pipeline(record, Draw(self._seed, epoch, number))
            self._layout = self._describe(finished)
        except (StageError, ValueError, TypeError) as error:
            raise self._named(number, error) from _cause(error)
        return finished

    def _named(self, number: int, error: Exception) -> RecordError:
        stage = error.stage if isinstance(error, StageError) else "collate"
        return record_error(self._source, number, stage, _cause(error))

    def _describe(self, record: Record) -> Layout:
        if not isinstance(record, Mapping):
            raise ValueError(f"it is a {type(record).__name__}; a record is a mapping with 'features' and 'label'")
        layout = {}
        for name in FIELDS:
            if name in record:
                value = np.asarray(record[name])
                layout[name] = (value.shape, batch_dtype(value.dtype, self._dtype))
        if "features" not in layout:
            raise ValueError(f"it has no field 'features'; it has {', '.join(map(repr, record)) or 'none'}")
        return layout


def _cause(error: Exception) -> BaseException:
    return error.__cause__ or error if isinstance(error, StageError) else error


def batch_dtype(stored: np.dtype, wanted: np.dtype) -> np.dtype:
    """The dtype in a batch of what is `stored`, when floating values are `wanted` in another."""
    # Files may hold the other byte order, which torch does not take.
    return wanted if is_floating(stored) else stored.newbyteorder("=")


def to_batch(arrays: Mapping[str, np.ndarray]) -> Batch:
    """The batch of arrays named as the fields of a record; records without a label give labels None."""
    return Batch(arrays["features"], arrays.get("label"), arrays.get("features_mask"), arrays.get("labels_mask"))
