"""Strategy `presaved`: arrays are gathered from a store, and what the pipeline still has to do is done."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import presave
from etl.iterators.indexed import EpochIterator
from etl.iterators.sampler import Order, Uneven
from etl.loading.lengths import Lengths, bucket_lengths, store_lengths
from etl.loading.padder import Padder
from etl.loading.padding import Padding
from etl.loading.record_loader import OnError
from etl.loading.records import ragged_after
from etl.loading.store_loader import choose_loader
from etl.stages.dtypes import find_dtype
from etl.stages.pipeline import Pipeline


class PresavedIterator(EpochIterator):
    """Batches from a store, or the path of one, finished by `pipeline`, the remainder of the one that wrote it.

    Arguments are as those of `RawIterator`; how long records are the store says, unless a stage that is left changes
    that. A store given as a path is closed with the iterator.

    Raises `ValueError` where the store was written by another pipeline or cut after another stage, and as
    `RawIterator` does.
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
        padding: Padding | None = None,
        bucket_records: int | None = None,
    ) -> None:
        self._owns_store = not isinstance(store, presave.Store)
        self._store = store if isinstance(store, presave.Store) else presave.open_store(store)
        check_remainder(self._store, pipeline)
        lengths = store_lengths(self._store, pipeline, padding) if padding is not None else None
        longest = bucket_lengths(lengths, padding, bucket_records, str(self._store.path))
        order = Order(
            len(self._store), batch_size, shuffle, seed, drop_last, bucket_records=bucket_records, lengths=longest
        )
        padder = None if padding is None else make_padder(self._store, pipeline, padding, lengths, find_dtype(dtype))
        loader = choose_loader(self._store, pipeline, find_dtype(dtype), order.seed, on_error, padder)
        super().__init__(order, loader, dtype, reuse=reuse)

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> PresavedIterator:
        """Return an iterator over the part of each epoch that belongs to `rank`; see `BatchIterator.shard`. The store
        stays this one's to close.
        """
        part: PresavedIterator = super().shard(rank, world_size, uneven)
        part._owns_store = False
        return part

    def close(self) -> None:
        """Close the store if it was opened here; iterating afterwards is an error."""
        super().close()
        if self._owns_store:
            self._store.close()


def make_padder(
    store: presave.Store, pipeline: Pipeline, padding: Padding, lengths: Lengths | None, dtype: np.dtype
) -> Padder:
    """Pads what `store` says to vary, unless a stage that is left makes it alike."""
    ragged = [name for name, field in store.fields.items() if field.is_ragged]
    return Padder(padding, ragged_after(ragged, pipeline.stages), lengths, dtype)


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
