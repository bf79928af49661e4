"""Records to a batch: every field of every record written once, into its slot."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np

from etl.loading.batch import Batch
from etl.loading.batch_plan import Layout, Where
from etl.loading.padder import Padder
from etl.loading.records import read_record
from etl.sources.record import Record, RecordError, record_error
from etl.stages.draw import Draw
from etl.stages.dtypes import is_floating
from etl.stages.fields import batch_fields, check_as_many, flatten, put_together
from etl.stages.pipeline import READING, Pipeline, StageError
from presave import forks

NOTHING_LEFT = Pipeline([])

OnError = Literal["raise", "skip"]


class RecordLoader:
    """Reads records one by one, applies `pipeline` to each, and stores the results in arrays, one for each field.

    Floating features, labels and masks take `dtype`; integers keep theirs. The first record tells names, shapes and
    dtypes; a later one that differs is an error, but for the lengths that `padder` makes alike. `seed` is that of
    random stages. Implements `Loader`.
    """

    def __init__(
        self,
        source: Any,
        pipeline: Pipeline,
        dtype: np.dtype,
        seed: int,
        on_error: OnError,
        padder: Padder | None = None,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', not {on_error!r}")
        self._source = source
        self._pipeline = pipeline
        self._dtype = dtype
        self._seed = seed
        self._on_error = on_error
        self._padder = padder
        # That of one record.
        self._layout: Layout | None = None
        # Records that were finished to lay out a batch, by number and epoch; they live as long as its layout.
        self._finished: weakref.WeakValueDictionary[tuple[int, int], _Finished] = weakref.WeakValueDictionary()

    def task_records(self, records: int, workers: int) -> int:  # noqa: ARG002 - other loaders go by them
        """One: a record may take long."""
        return 1

    def lay_out(self, numbers: np.ndarray, epoch: int, where: Where) -> Layout:
        """What a batch of `numbers` looks like. Names and dtypes are found out from the first record that does not
        fail; steps from what the data set says of them, otherwise by loading all of the batch here.
        """
        finished = self._finish_first(numbers, epoch, where) if self._layout is None else []
        assert self._layout is not None  # noqa: S101 - for the type checker
        layout = self._layout
        if self._padder is not None:
            longest = self._padder.longest(layout, numbers)
            if longest is None:
                finished = self._finish(numbers, epoch, where)
                longest = self._padder.longest_of(layout, [each.record for each in finished if each.error is None])
            layout = self._padder.lay_out(layout, longest)
        return _LaidOut(layout, finished) if finished else layout

    def load(
        self, numbers: np.ndarray, epoch: int, arrays: Mapping[str, np.ndarray], where: Where
    ) -> dict[int, RecordError]:
        """Write the records `numbers` into `arrays`; the rows of those left out.

        A `MemoryError` names the record, too, and is none to leave it out for.
        """
        # Bound by the pipeline: benchmarks/end_to_end.py measures it as `raw`.
        skipped = {}
        read = self.reader(numbers)
        for row, number in enumerate(numbers.tolist()):
            if where[2]:
                break
            forks.let_through()
            where[0], where[1] = number, READING
            try:
                slots = {name: array[row, ...] for name, array in arrays.items()}
                self._load_one(read, row, number, epoch, slots, where)
            except RecordError as error:
                if self._on_error == "raise":
                    raise
                # Its traceback would keep the memory of the batch.
                skipped[row] = RecordError(*error.args)
            except MemoryError as error:
                raise self._out_of_memory(where, error) from error
        return skipped

    def to_batch(self, arrays: Mapping[str, np.ndarray]) -> Batch:
        """The batch of `arrays`, named as the fields of a record."""
        return to_batch(arrays)

    def error_at(self, where: Where, cause: BaseException) -> RecordError:
        """The error for what happened to a worker that was there."""
        number, place = where[0], where[1]
        return record_error(self._source, number, self._pipeline.name_at(place), cause)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_finished"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _finished=weakref.WeakValueDictionary())

    def reader(self, numbers: np.ndarray, lasting: bool = False) -> Callable[[int], Record]:  # noqa: ARG002
        """What gives by its row each of the records `numbers` before the pipeline, or raises `RecordError`.

        Unless they are to be `lasting`, records may be overwritten by those that this thread reads next.
        """
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
        done = self._finished.get((number, epoch))
        if done is not None and done.error is not None:
            raise done.error
        record, pipeline = (read(row), self._pipeline) if done is None else (done.record, NOTHING_LEFT)
        draw = Draw(self._seed, epoch, number) if pipeline.is_random else None
        try:
            if self._padder is None:
                found = pipeline.write_into(record, slots, draw, where)
            else:
                fields = flatten(pipeline(record, draw, where))
                self._padder.write(fields, slots, number)
                found = fields.keys()
            if not found <= slots.keys() and any(name not in slots for name in batch_fields(found)):
                check_as_many(found, slots)
                raise ValueError(f"it has fields {', '.join(found)}, the records before it {', '.join(slots)}")
        except (StageError, ValueError, TypeError) as error:
            raise self._named(number, error) from _cause(error)

    def _finish_first(self, numbers: np.ndarray, epoch: int, where: Where) -> list[_Finished]:
        """Finish records until one does not fail, and describe that."""
        finished: list[_Finished] = []
        # All records of the first batches may be such that are left out: any other tells the layout as well.
        for number in chain(numbers.tolist(), range(len(self._source))):
            finished += self._finish(np.array([number]), epoch, where)
            if finished[-1].error is None:
                try:
                    self._layout = self._describe(finished[-1].record)
                except (ValueError, TypeError) as error:
                    raise self._named(number, error) from error
                return finished
        raise finished[0].error or ValueError("there are no records to lay a batch out for")

    def _finish(self, numbers: np.ndarray, epoch: int, where: Where) -> list[_Finished]:
        """The records `numbers` after the pipeline, for `load` to find; raises as `load` does."""
        read = self.reader(numbers, lasting=True)
        finished = []
        for row, number in enumerate(numbers.tolist()):
            done = self._finished.get((number, epoch))
            forks.let_through()
            if done is None:
                where[0], where[1] = number, READING
                try:
                    done = self._finish_one(read, row, number, epoch, where)
                except MemoryError as error:
                    raise self._out_of_memory(where, error) from error
                self._finished[number, epoch] = done
            finished.append(done)
        return finished

    def _finish_one(self, read: Callable[[int], Record], row: int, number: int, epoch: int, where: Where) -> _Finished:
        try:
            record = read(row)
            try:
                return _Finished(flatten(self._pipeline(record, Draw(self._seed, epoch, number), where)))
            except (StageError, ValueError, TypeError) as error:
                raise self._named(number, error) from _cause(error)
        except RecordError as error:
            if self._on_error == "raise":
                raise
            return _Finished({}, error)

    def _named(self, number: int, error: Exception) -> RecordError:
        stage = error.stage if isinstance(error, StageError) else "collate"
        return record_error(self._source, number, stage, _cause(error))

    def _out_of_memory(self, where: Where, cause: MemoryError) -> MemoryError:
        """Says at which record."""
        return MemoryError(str(self.error_at(where, cause)))

    def _describe(self, record: Record) -> Layout:
        layout = {}
        for name in batch_fields(record):
            value = np.asarray(record[name])
            layout[name] = (value.shape, batch_dtype(value.dtype, self._dtype))
        if "features" not in layout and "features.0" not in layout:
            raise ValueError(f"it has no field 'features'; it has {', '.join(map(repr, record)) or 'none'}")
        if self._padder is not None:
            self._padder.check(layout)
        return layout


class _Finished:
    """A flat record after the pipeline, or the error that it ended with."""

    def __init__(self, record: Record, error: RecordError | None = None) -> None:
        self.record = record
        self.error = error


class _LaidOut(dict[str, tuple[tuple[int, ...], np.dtype]]):
    """A layout that holds the records that were finished to find it."""

    def __init__(self, layout: Layout, finished: Sequence[_Finished]) -> None:
        super().__init__(layout)
        self._finished = finished

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _cause(error: Exception) -> BaseException:
    return error.__cause__ or error if isinstance(error, StageError) else error


def batch_dtype(stored: np.dtype, wanted: np.dtype) -> np.dtype:
    """The dtype in a batch of what is `stored`, when floating values are `wanted` in another."""
    # Files may hold the other byte order, which torch does not take.
    return wanted if is_floating(stored) else stored.newbyteorder("=")


def to_batch(arrays: Mapping[str, np.ndarray]) -> Batch:
    """The batch of arrays named as the flat fields of a record; records without a label give labels None."""
    record = put_together(arrays)
    return Batch(record["features"], record.get("label"), record.get("features_mask"), record.get("labels_mask"))
