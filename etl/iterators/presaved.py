"""Strategy `presaved`: records are gathered from a store, and the rest of the pipeline is applied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import presave
from etl.iterators.indexed import IndexedIterator
from etl.loading.lengths import bucket_lengths, store_lengths
from etl.loading.padder import Padder
from etl.loading.padding import Padding
from etl.loading.record_loader import OnError
from etl.loading.records import check_remainder, ragged_after
from etl.loading.sampler import Sampler, Uneven
from etl.loading.store_loader import choose_loader
from etl.sources.identity import store_digests
from etl.stages.dtypes import find_dtype
from etl.stages.pipeline import Pipeline
from presave.store import ragged_of
from presave.thread_safety import is_torch_subset


class PresavedIterator(IndexedIterator):
    """Yields batches of records from a store, after the rest of the pipeline that wrote the store.

    Parameters
    ----------
    store : presave.Store, str or Path
        The store, or its path. A store that is given by its path is closed with the iterator.
    pipeline : Pipeline
        The stages after those that the store was written with: `pipeline.after(stage)`. An empty pipeline fits any
        store.
    batch_size, shuffle, seed, dtype, drop_last, reuse, on_error, padding, bucket_records
        See `RawIterator`. Lengths of records come from the store, unless a remaining stage changes them.

    Raises
    ------
    TypeError
        If `store` is a torch `Subset` of one, which is a source of `RawIterator`.
    ValueError
        If another pipeline wrote the store, or the pipeline was split after another stage; and as for `RawIterator`.
    StoreError
        If there is no store, or it is damaged.

    Examples
    --------
    >>> source, pipeline = etl.ImageFolder("photos"), etl.image_pipeline(size=64)
    >>> store = presave.write("half.store", etl.records(source, pipeline.until("resize")))
    >>> saved = etl.PresavedIterator(store, pipeline.after("resize"), batch_size=16)
    >>> raw = etl.RawIterator(source, pipeline, batch_size=16)
    >>> np.array_equal(next(iter(saved)).features, next(iter(raw)).features)
    True
    """

    def __init__(
        self,
        store: presave.Store | str | Path,
        pipeline: Pipeline,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
        seed: int = 0,
        dtype: str | None = "float32",
        drop_last: bool = False,
        reuse: bool = True,
        on_error: OnError = "raise",
        padding: Padding | None = None,
        bucket_records: int | None = None,
    ) -> None:
        if is_torch_subset(store):
            raise TypeError("a Subset is not a store: pass it to etl.RawIterator, with the same pipeline")
        self._owns_store = not isinstance(store, presave.Store)
        self._store = store if isinstance(store, presave.Store) else presave.open_store(store)
        check_remainder(self._store, pipeline)
        padder, lengths = None, None
        if padding is not None:
            lengths = store_lengths(self._store, pipeline, padding)
            padder = Padder(padding, ragged_after(ragged_of(self._store), pipeline.stages), lengths, find_dtype(dtype))
        longest = bucket_lengths(lengths, padding, bucket_records, str(self._store.path))
        sampler = Sampler(
            len(self._store), batch_size, shuffle, seed, drop_last, bucket_records=bucket_records, lengths=longest
        )
        loader = choose_loader(self._store, pipeline, find_dtype(dtype), sampler.seed, on_error, padder)
        super().__init__(sampler, loader, dtype, reuse=reuse)

    def _subject(self) -> str:
        return repr(str(self._store.path))

    def _identify(self) -> Mapping[str, str]:
        return store_digests(self._store.manifest)

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> PresavedIterator:
        """Return a part of each epoch, see `BatchIterator.shard`. Closing it does not close the store."""
        part: PresavedIterator = super().shard(rank, world_size, uneven)
        part._owns_store = False
        return part

    def close(self) -> None:
        """Close the iterator, and the store if it was opened here."""
        super().close()
        if self._owns_store:
            self._store.close()
