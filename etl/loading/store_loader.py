"""Records of a store: gathered many at a time, and finished by what is left of the pipeline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import presave
from etl.loading.batch_plan import Layout, Where
from etl.loading.gather_normalised import can_gather_normalised, gather_normalised
from etl.loading.padder import Padder
from etl.loading.record_loader import OnError, RecordLoader, batch_dtype
from etl.sources.record import Record, RecordError
from etl.stages import ChannelsFirst, Normalise
from etl.stages.fields import batch_fields, put_together
from etl.stages.pipeline import READING, Pipeline


class StoreLoader(RecordLoader):
    """Gathers records from a store many at a time, and applies what is left of the pipeline to each."""

    def __init__(
        self,
        store: presave.Store,
        pipeline: Pipeline,
        dtype: np.dtype,
        seed: int,
        on_error: OnError,
        padder: Padder | None = None,
    ) -> None:
        super().__init__(store, pipeline, dtype, seed, on_error, padder)
        self._store = store
        self._fields = batch_fields(store.fields)
        self._has_tuples = list(put_together(dict.fromkeys(self._fields))) != self._fields
        self._gathered = _Buffers()

    def task_records(self, records: int, workers: int) -> int:  # noqa: ARG002 - other loaders go by them
        """One, or all of them where parts of a batch cost more than the whole."""
        return 1 if self._store.is_mapped else records

    def reader(self, numbers: np.ndarray, lasting: bool = False) -> Callable[[int], Record]:
        """Gives each of the records `numbers`, gathered at once, into memory that this thread has for that unless they
        are to be `lasting`.
        """
        buffers = {name: None if lasting else self._buffer(name, len(numbers)) for name in self._fields}
        arrays = self._store.gather(numbers, buffers)
        if self._has_tuples:
            return lambda row: put_together({name: array[row] for name, array in arrays.items()})
        return lambda row: {name: array[row] for name, array in arrays.items()}

    def _buffer(self, name: str, records: int) -> np.ndarray | None:
        """Where to gather a field before the pipeline reads it; None for a ragged one, which takes another amount each
        time.
        """
        field = self._store.fields[name]
        if field.is_ragged:
            return None
        if len(self._gathered.arrays.get(name, ())) < records:
            self._gathered.arrays[name] = field.empty(records)
        return self._gathered.arrays[name][:records]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_gathered": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_gathered": _Buffers()})


class WholeLoader(StoreLoader):
    """Nothing to do and nothing to convert: the gather itself writes the batch, with `normalise` normalised on the way.

    Bound by memory: benchmarks/end_to_end.py measures it as `presaved`, benchmarks/gather.py against `fill`.
    """

    def __init__(
        self,
        store: presave.Store,
        pipeline: Pipeline,
        dtype: np.dtype,
        seed: int,
        on_error: OnError,
        normalise: Normalise | None,
    ) -> None:
        super().__init__(store, pipeline, dtype, seed, on_error)
        self._normalise = normalise

    def lay_out(self, numbers: np.ndarray, epoch: int, where: Where) -> Layout:  # noqa: ARG002 - the same for all
        """What batches look like, as the store says."""
        layout = {}
        for name in self._fields:
            field = self._store.fields[name]
            layout[name] = (field.sizes, batch_dtype(field.numpy_dtype, self._dtype))
        if self._normalise is not None:
            height, width, channels = self._store.fields["features"].sizes
            layout["features"] = ((channels, height, width), np.dtype(np.float32))
        return layout

    def task_records(self, records: int, workers: int) -> int:
        """An even share each, where parts of a batch cost no more than the whole."""
        return -(-records // workers) if self._store.is_mapped else records

    def load(
        self,
        numbers: np.ndarray,
        epoch: int,  # noqa: ARG002 - nothing here is random
        arrays: Mapping[str, np.ndarray],
        where: Where,
    ) -> dict[int, RecordError]:
        """Gather the records `numbers` into `arrays`."""
        where[0], where[1] = int(numbers[0]), READING
        plain: dict[str, np.ndarray | None] = {}
        for name, array in arrays.items():
            if name == "features" and self._normalise is not None:
                gather_normalised(self._store, numbers, self._normalise, array)
            else:
                plain[name] = array if array.dtype == self._store.fields[name].numpy_dtype else None
        for name, values in self._store.gather(numbers, plain).items():
            if plain[name] is None:
                arrays[name][...] = values
        return {}


class _Buffers(threading.local):
    """Arrays by field, for each thread its own."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}


def choose_loader(
    store: presave.Store,
    pipeline: Pipeline,
    dtype: np.dtype,
    seed: int,
    on_error: OnError,
    padder: Padder | None = None,
) -> RecordLoader:
    """The one that does the least for what `pipeline` leaves to do."""
    if padder is not None:
        return StoreLoader(store, pipeline, dtype, seed, on_error, padder)
    fields = [store.fields[name] for name in batch_fields(store.fields)]
    is_finished = not pipeline.stages and not any(field.is_ragged for field in fields)
    normalise = find_normalise(store, pipeline, dtype)
    has_features = "features" in store.fields or "features.0" in store.fields
    if has_features and (is_finished or normalise is not None):
        return WholeLoader(store, pipeline, dtype, seed, on_error, normalise)
    return StoreLoader(store, pipeline, dtype, seed, on_error)


def find_normalise(store: presave.Store, pipeline: Pipeline, dtype: np.dtype) -> Normalise | None:
    """The stage that the gather itself can do: where all that is left is to turn stored uint8 pixels channels first and
    to normalise them to float32. None where there is more or less to do.
    """
    # Subclasses may do something else.
    if [type(stage) for stage in pipeline.stages] != [ChannelsFirst, Normalise] or dtype != np.float32:
        return None
    if store.reads_whole_shards:  # once for the features and again for the labels
        return None
    normalise = pipeline.stages[-1]
    fixed = not any(store.fields[name].is_ragged for name in batch_fields(store.fields))
    if isinstance(normalise, Normalise) and fixed and can_gather_normalised(store, normalise):
        return normalise
    return None
