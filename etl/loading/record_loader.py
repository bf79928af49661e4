"""Loading record by record: each is read, goes through the pipeline, and is written into its row of the batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from etl.loading.batch_plan import ENDED, NONE_FINISHED, BatchSpec, Fields, Finished, Granularity
from etl.loading.padder import Padder
from etl.loading.records import name_error, raise_from
from etl.sources.record import RecordError, record_error
from etl.stages.collate import as_array, write_record
from etl.stages.cursor import COLLATING, READING, Cursor
from etl.stages.dtypes import is_floating
from etl.stages.fields import batch_fields, flatten
from etl.stages.pipeline import Pipeline
from etl.stages.rng import LoaderRng
from presave import Record, forks
from presave.errors import is_fault_of_record
from presave.thread_safety import is_thread_safe, unopened

OnError = Literal["raise", "skip"]
# From record indices, and whether records must outlast the next call, to a function from row to record.
ReadRows = Callable[[np.ndarray, bool], Callable[[int], Record]]


class RecordLoader:
    """A `Loader` that applies `pipeline` to each record of `source`.

    Floating features, labels and masks are converted to `dtype`; integers keep their own. The first record that loads,
    and has no empty field, decides names, shapes and dtypes. Another one that differs is an error, except in lengths
    that `padder` pads.

    Parameters
    ----------
    dtype : numpy dtype or None
        The dtype of floating fields in the batch; None for their own.
    on_error : {"raise", "skip"}
        Raise `RecordError` for a record that fails, or skip it if the record is at fault (see `is_fault_of_record`).
    read_rows : callable, optional
        Reads all records of a chunk in one call, instead of one by one (see `StoreRecords.read_rows`).
    """

    def __init__(
        self,
        source: Any,
        pipeline: Pipeline,
        dtype: np.dtype | None,
        seed: int,
        on_error: OnError,
        padder: Padder | None = None,
        granularity: Granularity = "record",
        read_rows: ReadRows | None = None,
    ) -> None:
        check_on_error(on_error)
        self.granularity = granularity
        self._source = source
        # The source, or a copy of it.
        self._read_from = source
        self._read_rows = read_rows
        self._pipeline = pipeline
        self._dtype = dtype
        self._rng = LoaderRng(seed)
        self._on_error = on_error
        self._padder = padder
        # A record may be overwritten when the next one is read, by a data set that uses a buffer again.
        self._copies = read_rows is None and not is_thread_safe(source)
        # The fields of one record, before padding.
        self._spec: BatchSpec | None = None

    def reading_a_copy(self) -> RecordLoader:
        """Return a loader that reads from a copy of the source, so that the source itself opens nothing here.

        What it opened could not be sent to processes, and forks of this one would share it.
        """
        if self._read_rows is not None:
            return self
        loader = copy.copy(self)
        loader._read_from = unopened(self._source)
        return loader

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read_from": self._source}

    def plan(self, indices: NDArray[np.int64], epoch: int, cursor: Cursor) -> BatchSpec:
        # Names and dtypes are those of one record, see `_load_first`, which is loaded only once. If the data set has no
        # lengths, all records of the batch are loaded here.
        spec = self._spec
        if spec is None:
            finished = self._load_first(indices, epoch, cursor)
            example = next(each for each in reversed(finished.values()) if not isinstance(each, RecordError))
            self._spec = BatchSpec(self._describe(example, cursor))
            spec = BatchSpec(self._spec.fields, finished)
        if self._padder is None:
            return spec
        longest = self._padder.longest(spec.fields, indices)
        if longest is not None:
            return BatchSpec(self._padder.plan(spec.fields, longest), spec.finished)
        finished = self._finish(indices, epoch, cursor, spec.finished)
        records = [each for each in finished.values() if not isinstance(each, RecordError)]
        fields = self._padder.plan(spec.fields, self._padder.longest_of(spec.fields, records))
        return BatchSpec(fields, finished, is_finished=True)

    def load(
        self,
        indices: NDArray[np.int64],
        epoch: int,
        out: Mapping[str, np.ndarray],
        cursor: Cursor,
        finished: Mapping[int, Finished] = NONE_FINISHED,
    ) -> dict[int, RecordError]:
        # Bound by the pipeline: benchmarks/end_to_end.py measures it as `raw`.
        skipped: dict[int, RecordError] = {}
        source, pipeline, padder, casts = self._read_from, self._pipeline, self._padder, self._dtype is not None
        rng = self._rng
        rng.epoch = epoch
        read_row = None if self._read_rows is None else self._read_rows(indices, False)
        for row, index in enumerate(indices.tolist()):
            record = done = None  # freed before the next one is read
            if cursor.cancelled:
                break
            if forks.is_pending:
                forks.let_through()
            cursor.record, cursor.stage = index, READING
            done = finished.get(index)
            if isinstance(done, RecordError):
                skipped[row] = done
                continue
            try:
                if done is None:
                    record = source[index] if read_row is None else read_row(row)
                    rng.record = index
                    if padder is None:
                        pipeline.write_into(record, out, row, rng, cursor, casts)
                        continue
                    done = pipeline.run(record, rng, cursor)
                cursor.stage = COLLATING
                if padder is None:
                    write_record(done, out, row, casts=casts)
                else:
                    padder.write(flatten(done), out, row, index)
            except Exception as error:  # noqa: BLE001 - raised again, unless the record is to be skipped
                skipped[row] = self._skip(cursor, error)
        return skipped

    def name_error(self, cursor: Cursor, cause: BaseException) -> RecordError:
        return record_error(self._source, cursor.record, self._pipeline.name_at(cursor.stage), cause)

    def _load_first(self, indices: NDArray[np.int64], epoch: int, cursor: Cursor) -> dict[int, Finished]:
        """Return the first record that does not fail and tells all dtypes, and the records and errors before it.

        An empty list tells none: as an array it has floats. If the batch has no other record, its last one has to do.
        """
        finished: dict[int, Finished] = {}
        # If all records of the batch fail, any other record has the same fields.
        for place, index in enumerate(chain(indices.tolist(), range(len(self._source)))):
            finished |= self._finish(np.array([index]), epoch, cursor, finished)
            found = finished[index]
            if isinstance(found, RecordError):
                continue
            if place + 1 >= len(indices) or all(np.size(found[name]) for name in batch_fields(found)):
                return finished
        first = next(iter(finished.values()), None)
        raise first if isinstance(first, RecordError) else ValueError("there are no records to plan a batch for")

    def _finish(
        self, indices: NDArray[np.int64], epoch: int, cursor: Cursor, before: Mapping[int, Finished]
    ) -> dict[int, Finished]:
        """Return the records `indices` after the pipeline; those in `before` are not loaded again."""
        finished: dict[int, Finished] = {}
        read_row = None if self._read_rows is None else self._read_rows(indices, True)
        for row, index in enumerate(indices.tolist()):
            record = None  # freed before the next one is read
            if cursor.cancelled:
                raise RuntimeError(ENDED)
            if forks.is_pending:
                forks.let_through()
            if index in before:
                finished[index] = before[index]
                continue
            cursor.record, cursor.stage = index, READING
            try:
                record = self._read_from[index] if read_row is None else read_row(row)
                self._rng.epoch, self._rng.record = epoch, index
                record = self._pipeline.run(record, self._rng, cursor)
                cursor.stage = COLLATING
                record = flatten(record)
                # A batch has no other fields, which may be anything.
                arrays = {name: as_array(name, record[name]) for name in batch_fields(record)}
                if self._copies:
                    arrays = {name: np.array(each) for name, each in arrays.items()}
                finished[index] = {**dict.fromkeys(record), **arrays}
            except Exception as error:  # noqa: BLE001 - raised again, unless the record is to be skipped
                finished[index] = self._skip(cursor, error)
        return finished

    def _skip(self, cursor: Cursor, error: Exception) -> RecordError:
        """Return the reason for skipping the record at `cursor`; raise it if records are not to be skipped.

        A returned error was never raised, because its traceback would keep the memory of the batch alive.
        """
        failure = name_error(self._source, self._pipeline, cursor, error)
        if self._on_error == "skip" and isinstance(failure, RecordError) and is_fault_of_record(error):
            return failure
        try:
            raise_from(failure, error)
        finally:  # its traceback holds this frame: a cycle would live until the collector runs
            del failure, error

    def _describe(self, record: Record, cursor: Cursor) -> Fields:
        try:
            fields = {}
            for name in batch_fields(record):
                value = np.asarray(record[name])
                fields[name] = (value.shape, batch_dtype(value.dtype, self._dtype))
            if "features" not in fields and "features.0" not in fields:
                raise ValueError(f"it has no field 'features'; it has {', '.join(map(repr, record)) or 'none'}")
            if self._padder is not None:
                self._padder.check(fields)
        except (ValueError, TypeError) as error:
            raise self.name_error(cursor, error) from error
        return fields


def check_on_error(on_error: str) -> None:
    """Raise `ValueError` unless `on_error` is "raise" or "skip"."""
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip', not {on_error!r}")


def batch_dtype(stored: np.dtype, wanted: np.dtype | None) -> np.dtype:
    """Return the dtype that a field has in a batch: `wanted`, if given, for a floating field, otherwise its own."""
    # In native byte order: files may hold the other one, which torch does not take.
    return wanted if wanted is not None and is_floating(stored) else stored.newbyteorder("=")
