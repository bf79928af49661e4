"""Strategy `presaved`: arrays are gathered from a store, and what the pipeline still has to do is done."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import presave
from etl.batch import Batch
from etl.dtypes import find_dtype, is_floating
from etl.iterators.collate import FIELDS, Collator, batch_dtype, to_batch
from etl.iterators.epochs import EpochIterator
from etl.iterators.order import Order
from etl.kernels import can_gather_normalised, gather_normalised
from etl.pipeline import Pipeline
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
    ) -> None:
        self._owns_store = not isinstance(store, presave.Store)
        self._store = store if isinstance(store, presave.Store) else presave.open_store(store)
        check_remainder(self._store, pipeline)
        super().__init__(Order(len(self._store), batch_size, shuffle, seed, drop_last), dtype)
        self._collator = Collator(self._store, pipeline, find_dtype(dtype))
        self._fields = [name for name in FIELDS if name in self._store.fields]
        wanted = find_dtype(dtype)
        self._normalise = find_normalise(self._store, pipeline, wanted)
        # Nothing to do and nothing to convert: the gather itself writes the batch.
        self._is_finished = not pipeline.stages and all(
            not field.is_ragged and (not is_floating(np.dtype(field.dtype)) or np.dtype(field.dtype) == wanted)
            for field in (self._store.fields[name] for name in self._fields)
        )
        self._gathered: dict[str, np.ndarray] = {}

    def _load(self, numbers: np.ndarray) -> Batch:
        # Bound by memory: benchmarks/end_to_end.py measures it as `presaved`.
        if self._normalise is not None:
            return self._load_normalised(numbers, self._normalise)
        if self._is_finished:
            return to_batch(self._store.gather(numbers, dict.fromkeys(self._fields)))
        arrays = self._store.gather(numbers, {name: self._buffer(name, len(numbers)) for name in self._fields})
        records = (
            (number, {name: array[slot] for name, array in arrays.items()})
            for slot, number in enumerate(numbers.tolist())
        )
        return self._collator.collate(records, len(numbers))

    def _load_normalised(self, numbers: np.ndarray, normalise: Normalise) -> Batch:
        others = self._store.gather(numbers, {name: None for name in self._fields if name != "features"})
        wanted = find_dtype(self._dtype)
        arrays = {name: array.astype(batch_dtype(array.dtype, wanted), copy=False) for name, array in others.items()}
        return to_batch({**arrays, "features": gather_normalised(self._store, numbers, normalise)})

    def _buffer(self, name: str, records: int) -> np.ndarray | None:
        """Where to gather a field before the pipeline reads it, the same memory for every batch; None for a ragged one,
        which takes another amount each time.
        """
        field = self._store.fields[name]
        if field.is_ragged:
            return None
        if len(self._gathered.get(name, ())) < records:
            self._gathered[name] = field.empty(records)
        return self._gathered[name][:records]

    def shard(self, rank: int, world_size: int) -> PresavedIterator:
        """A new iterator over the part of each epoch that belongs to `rank`; the store stays this one's to close."""
        part: PresavedIterator = super().shard(rank, world_size)
        part._gathered, part._owns_store = {}, False
        return part

    def close(self) -> None:
        """Close the store if it was opened here; iterating afterwards is an error."""
        super().close()
        if self._owns_store:
            self._store.close()


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
