"""The upper bound on speed: the same batch again and again, so that loading costs nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from etl.arguments import whole_number
from etl.iterators.indexed import IndexedIterator
from etl.loading.batch import Batch
from etl.loading.batch_plan import AnyPlan, Position, ReadyBatch
from etl.loading.buffer_pool import BufferPool
from etl.loading.record_loader import RecordLoader
from etl.loading.sampler import Sampler, Uneven
from etl.stages.cursor import Cursor
from etl.stages.dtypes import DTYPES, find_dtype
from etl.stages.pipeline import Pipeline


class SyntheticIterator(IndexedIterator):
    """Yields the same batch of normally distributed features and evenly distributed labels again and again.

    Training on it measures compute alone.

    Parameters
    ----------
    shape : tuple of int
        The shape of one record's features; a batch has features of shape `(batch_size, *shape)`.
    classes : int
        Number of classes. Labels are int64 from 0 to `classes - 1`.
    batches : int
        Batches of an epoch.
    batch_size : int
        Records of a batch.
    seed : int
        Seeds the random numbers.
    dtype : str
        The dtype of features.

    Examples
    --------
    >>> batches = list(etl.SyntheticIterator((3, 8, 8), classes=10, batches=3))
    >>> len(batches), batches[0].features.shape
    (3, (32, 3, 8, 8))
    """

    async_supported = False
    async_unsupported_reason = "it repeats one batch that is in memory, so there is nothing to prefetch"

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        batches: int,
        batch_size: int = 32,
        *,
        seed: int = 0,
        dtype: str = "float32",
    ) -> None:
        for name, count in (("batches", batches), ("classes", classes), ("batch_size", batch_size)):
            whole_number(name, count, least=1)
        sampler = Sampler(batches * batch_size, batch_size, shuffle=False, seed=seed, drop_last=False)
        random = np.random.default_rng(seed)
        features = random.standard_normal((batch_size, *shape), dtype=np.float32).astype(find_dtype(dtype))
        self._batch = Batch(features, random.integers(0, classes, batch_size))
        # Its batches are ready, so this loader is never asked for one.
        super().__init__(sampler, RecordLoader([], Pipeline([]), None, sampler.seed, "raise"), dtype)

    def _subject(self) -> str:
        features = self._batch.features
        return "one batch" if isinstance(features, tuple) else f"{features.dtype} {list(features.shape)}"

    @classmethod
    def repeating(cls, batch: Batch, batches: int) -> SyntheticIterator:
        """Return an iterator whose epochs yield `batch` `batches` times.

        Its dtype is that of the first floating array.
        """
        dtypes = [name for array in batch.arrays() for name, dtype in DTYPES.items() if array.dtype == dtype]
        iterator = cls((1,), 1, batches, batch.records, dtype=(dtypes or ["float32"])[0])
        iterator._batch = batch
        return iterator

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> SyntheticIterator:
        """Return an iterator that yields the same batch `batches` times on every rank, see `BatchIterator.shard`.

        No record is marked as repeated, whatever `uneven` is.
        """
        Sampler(1, 1, shuffle=False, seed=0, drop_last=False, rank=rank, world_size=world_size, uneven=uneven)
        part = SyntheticIterator.repeating(self._batch, len(self))
        part.set_epoch(self.epoch + self._has_taken_last)
        return part

    def _plan_epoch(self, cursor: Cursor, pool: BufferPool) -> Iterator[AnyPlan]:  # noqa: ARG002 - nothing is loaded
        for _, _, after in self._sampler.batches(self._epoch, self._position):
            yield ReadyBatch(self._batch, Position(self._epoch, after))
