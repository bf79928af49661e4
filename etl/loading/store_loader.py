"""Loaders for the records of a store: the cheapest one that can apply the rest of the pipeline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

import presave
from etl.loading.batch_plan import NONE_FINISHED, BatchSpec, Finished, Granularity, Loader
from etl.loading.fused_gather import can_gather_normalised, gather_normalised
from etl.loading.padder import Padder
from etl.loading.record_loader import OnError, RecordLoader, batch_dtype, check_on_error
from etl.sources.record import RecordError, record_error
from etl.stages import ChannelsFirst, Normalise
from etl.stages.cursor import READING, Cursor
from etl.stages.fields import batch_fields, unflatten
from etl.stages.pipeline import READ, Pipeline
from etl.stages.stage import is_of_etl
from presave import Record
from presave.shard_formats.arrays import SMALL_ROW_NBYTES

_NO_ROW = np.empty(0)


def choose_loader(
    store: presave.Store,
    pipeline: Pipeline,
    dtype: np.dtype | None,
    seed: int,
    on_error: OnError,
    padder: Padder | None = None,
) -> Loader:
    """Return the cheapest loader that applies `pipeline` to the records of `store`; for the rest see `RecordLoader`."""
    check_on_error(on_error)
    has_features = "features" in store.fields or "features.0" in store.fields
    is_ragged = any(store.fields[name].is_ragged for name in batch_fields(store.fields))
    if padder is None and has_features and not is_ragged:
        normalise = find_normalise(store, pipeline, dtype)
        if not pipeline.stages or normalise is not None:
            return GatherLoader(store, dtype, normalise)
    # Without a memory map, reading a batch in chunks costs more than reading it at once.
    granularity: Granularity = "record" if store.is_mapped else "batch"
    # A user's own stages may read any field. Without features, an error names all fields.
    reads_all = not has_features or not all(map(is_of_etl, pipeline.stages))
    records = StoreRecords(store, list(store.fields) if reads_all else batch_fields(store.fields))
    return RecordLoader(records, pipeline, dtype, seed, on_error, padder, granularity, records.read_rows)


def find_normalise(store: presave.Store, pipeline: Pipeline, dtype: np.dtype | None) -> Normalise | None:
    """Return the `Normalise` stage that the gather can apply itself; None if it cannot.

    It can if all that is left is to make uint8 pixels channels first and to normalise them to float32.
    """
    # Subclasses may do something else.
    is_float32 = dtype is None or dtype == np.float32
    if [type(stage) for stage in pipeline.stages] != [ChannelsFirst, Normalise] or not is_float32:
        return None
    if store.reads_whole_shards:  # it would read each shard twice, for the features and for the labels
        return None
    normalise = pipeline.stages[-1]
    return normalise if isinstance(normalise, Normalise) and can_gather_normalised(store, normalise) else None


class GatherLoader:
    """A `Loader` that gathers records straight into the batch.

    The records of the store are complete except for `normalise`. For `dtype` see `RecordLoader`.

    Bound by memory bandwidth: benchmarks/end_to_end.py measures it as `presaved`, benchmarks/gather.py against `fill`.
    """

    def __init__(self, store: presave.Store, dtype: np.dtype | None, normalise: Normalise | None) -> None:
        # A chunk of a mapped store costs no more than its share of the batch.
        self.granularity: Granularity = "share" if store.is_mapped else "batch"
        self._store = store
        self._normalise = normalise
        fields = {}
        for name in batch_fields(store.fields):
            field = store.fields[name]
            fields[name] = (field.sizes, batch_dtype(field.numpy_dtype, dtype))
        if normalise is not None:
            height, width, channels = store.fields["features"].sizes
            fields["features"] = ((channels, height, width), np.dtype(np.float32))
        self._spec = BatchSpec(fields)

    def plan(self, indices: NDArray[np.int64], epoch: int, cursor: Cursor) -> BatchSpec:  # noqa: ARG002 - all are the same
        return self._spec

    def load(
        self,
        indices: NDArray[np.int64],
        epoch: int,  # noqa: ARG002 - nothing here is random
        out: Mapping[str, np.ndarray],
        cursor: Cursor,
        finished: Mapping[int, Finished] = NONE_FINISHED,  # noqa: ARG002 - planning loads none
    ) -> dict[int, RecordError]:
        cursor.record, cursor.stage = int(indices[0]), READING
        plain: dict[str, np.ndarray | None] = {}
        for name, array in out.items():
            if name == "features" and self._normalise is not None:
                gather_normalised(self._store, indices, self._normalise, array)
            else:
                plain[name] = array if array.dtype == self._store.fields[name].numpy_dtype else None
        for name, values in self._store.gather(indices, plain).items():
            if plain[name] is None:
                out[name][...] = values
        return {}

    def name_error(self, cursor: Cursor, cause: BaseException) -> RecordError:
        return record_error(self._store, cursor.record, READ, cause)


class StoreRecords:
    """The records of a store as a `RecordLoader` reads them: many at once, and only some `fields`."""

    def __init__(self, store: presave.Store, fields: list[str]) -> None:
        self.path = store.path
        self._store = store
        self._fields = fields
        self._has_tuples = list(unflatten(dict.fromkeys(self._fields))) != self._fields
        # Large rows of a memory map are read where they lie: a stage that crops them needs only a part.
        self._viewed = [name for name in self._fields if store.is_mapped and _is_large(store.fields[name])]
        # Arrays by field name, of each thread.
        self._buffers = threading.local()

    def __len__(self) -> int:
        return len(self._store)

    def read_rows(self, indices: NDArray[np.int64], lasting: bool) -> Callable[[int], Record]:
        """Gather the records `indices` at once, and return a function from row to record.

        Unless `lasting`, the records are in a buffer of this thread that the next call overwrites, or in a memory map.
        """
        viewed = [] if lasting else self._viewed
        buffers = {
            name: None if lasting else self._buffer(name, len(indices)) for name in self._fields if name not in viewed
        }
        gathered = self._store.gather(indices, buffers)
        arrays = {name: self._views(name, indices) if name in viewed else gathered[name] for name in self._fields}
        if self._has_tuples:
            return lambda row: unflatten({name: array[row] for name, array in arrays.items()})
        return lambda row: {name: array[row] for name, array in arrays.items()}

    def _views(self, name: str, indices: NDArray[np.int64]) -> list[np.ndarray]:
        views = [_NO_ROW] * len(indices)
        for array, rows, slots in self._store.rows_by_shard(name, indices):
            for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
                views[slot] = array[row]
        return views

    def _buffer(self, name: str, records: int) -> np.ndarray | None:
        """Return memory to gather a field into; None for a ragged field, whose size differs each time."""
        field = self._store.fields[name]
        if field.is_ragged:
            return None
        arrays: dict[str, np.ndarray] = vars(self._buffers)
        if len(arrays.get(name, ())) < records:
            arrays[name] = field.empty(records)
        return arrays[name][:records]

    def __reduce__(self) -> tuple[type[StoreRecords], tuple[presave.Store, list[str]]]:
        return StoreRecords, (self._store, self._fields)


def _is_large(field: presave.Field) -> bool:
    return not field.is_ragged and field.empty(1).nbytes > SMALL_ROW_NBYTES
