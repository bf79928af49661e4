"""Strategy `presaved`: arrays are gathered from a store, and what the pipeline still has to do is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import presave
from etl.dtypes import find_dtype
from etl.iterators.epochs import EpochIterator
from etl.iterators.gather_normalised import can_gather_normalised, gather_normalised
from etl.iterators.loading import Layout, Where
from etl.iterators.order import Order
from etl.iterators.record_loader import FIELDS, READING, OnError, RecordLoader, batch_dtype
from etl.pipeline import Pipeline
from etl.record import Record, RecordError
from etl.stages import ChannelsFirst, Normalise


class PresavedIterator(EpochIterator):
    """Batches from a store, or the path of one, finished by `pipeline`, the remainder of the one that wrote it.

    Raises `ValueError` where the store was written by another pipeline or cut after another stage, and as
    `RawIterator` does. A store given as a path is closed with the iterator.
    """

    def __init__(
        self,
        store: presave.Store | str | Path,
        pipeline: Pipeline,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
        seed: int = 0,
        dtype: str = "float32",
        drop_last: bool = False,
        reuse: bool = True,
        on_error: OnError = "raise",
    ) -> None:
        self._owns_store = not isinstance(store, presave.Store)
        self._store = store if isinstance(store, presave.Store) else presave.open_store(store)
        check_remainder(self._store, pipeline)
        order = Order(len(self._store), batch_size, shuffle, seed, drop_last)
        loader = choose_loader(self._store, pipeline, find_dtype(dtype), order.seed, on_error)
        super().__init__(order, loader, dtype, reuse=reuse)

    def shard(self, rank: int, world_size: int) -> PresavedIterator:
        """A new iterator over the part of each epoch that belongs to `rank`; the store stays this one's to close."""
        part: PresavedIterator = super().shard(rank, world_size)
        part._owns_store = False
        return part

    def close(self) -> None:
        """Close the store if it was opened here; iterating afterwards is an error."""
        super().close()
        if self._owns_store:
            self._store.close()


class StoreLoader(RecordLoader):
    """Gathers records from a store many at a time, and applies what is left of the pipeline to each."""

    def __init__(self, store: presave.Store, pipeline: Pipeline, dtype: np.dtype, seed: int, on_error: OnError) -> None:
        super().__init__(store, pipeline, dtype, seed, on_error)
        self._store = store
        self._wanted_dtype = dtype
        self._fields = [name for name in FIELDS if name in store.fields]
        self._gathered = _Buffers()

    def task_records(self, records: int, workers: int) -> int:  # noqa: ARG002 - other loaders go by them
        """One, or all of them where parts of a batch cost more than the whole."""
        return 1 if self._store.is_mapped else records

    def reader(self, numbers: np.ndarray) -> Callable[[int], Record]:
        """Gives each of the records `numbers`, gathered at once into memory that this thread has for that."""
        arrays = self._store.gather(numbers, {name: self._buffer(name, len(numbers)) for name in self._fields})
        return lambda row: {name: array[row] for name, array in arrays.items()}

    def _finish_first(self, number: int, epoch: int) -> Record:
        record = super()._finish_first(number, epoch)
        self._gathered.arrays.clear()  # the record is kept, and may be a view of what was gathered
        return record

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
        self.__dict__.update(state, _gathered=_Buffers())


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

    def lay_out(self, numbers: np.ndarray, epoch: int) -> Layout:  # noqa: ARG002 - the same for all
        """What batches look like, as the store says."""
        layout = {}
        for name in self._fields:
            field = self._store.fields[name]
            layout[name] = (field.sizes, batch_dtype(np.dtype(field.dtype), self._wanted_dtype))
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
                plain[name] = array if array.dtype == np.dtype(self._store.fields[name].dtype) else None
        for name, values in self._store.gather(numbers, plain).items():
            if plain[name] is None:
                arrays[name][...] = values
        return {}


class _Buffers(threading.local):
    """Arrays by field, for each thread its own."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}


def choose_loader(
    store: presave.Store, pipeline: Pipeline, dtype: np.dtype, seed: int, on_error: OnError
) -> RecordLoader:
    """The one that does the least for what `pipeline` leaves to do."""
    fields = [store.fields[name] for name in FIELDS if name in store.fields]
    is_finished = not pipeline.stages and not any(field.is_ragged for field in fields)
    normalise = find_normalise(store, pipeline, dtype)
    if "features" in store.fields and (is_finished or normalise is not None):
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
    fixed = all(not store.fields[name].is_ragged for name in FIELDS if name in store.fields)
    if isinstance(normalise, Normalise) and fixed and can_gather_normalised(store, normalise):
        return normalise
    return None


def check_remainder(store: presave.Store, pipeline: Pipeline) -> None:
    """Raise `ValueError` unless `pipeline` goes on where the pipeline that wrote `store` was cut.

    An empty pipeline fits any store: nothing is left to do, says the caller.
    """
    manifest = store.manifest
    if not pipeline.names and not pipeline.preceding:
        return
    written_by = manifest.fingerprint if manifest.fingerprint is not None else Pipeline([]).fingerprint
    if written_by != pipeline.preceding_fingerprint:
        before = " -> ".join(Pipeline(pipeline.preceding).names) or "nothing"
        raise ValueError(
            f"{store.path} was written after stage {manifest.stage!r} of pipeline {manifest.fingerprint}; "
            f"this pipeline goes on after {before!r} of pipeline {pipeline.preceding_fingerprint}. "
            "Use the same pipeline's after(stage), or presave again"
        )
