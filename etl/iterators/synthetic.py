"""The upper bound: the same batch again and again, so that loading costs nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from etl.arguments import whole_number
from etl.iterators.indexed import EpochIterator
from etl.iterators.sampler import Order, Uneven
from etl.loading.batch import Batch
from etl.loading.batch_plan import Layout, Where
from etl.sources.record import RecordError, record_error
from etl.stages.dtypes import DTYPES, find_dtype


class SyntheticIterator(EpochIterator):
    """`batches` times the same batch of normally distributed features and evenly distributed labels.

    `shape` is that of one record's features; features are of `dtype`, shape `(batch_size, *shape)`, labels int64 in
    `0..classes-1`. Training on it measures compute alone.
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
        order = Order(batches * batch_size, batch_size, shuffle=False, seed=seed, drop_last=False)
        random = np.random.default_rng(seed)
        features = random.standard_normal((batch_size, *shape), dtype=np.float32).astype(find_dtype(dtype))
        self._repeat = _Repeat(Batch(features, random.integers(0, classes, batch_size)))
        super().__init__(order, self._repeat, dtype)

    @classmethod
    def repeating(cls, batch: Batch, batches: int) -> SyntheticIterator:
        """`batches` times the given batch, whose first floating array tells the dtype of models."""
        dtypes = [name for array in batch.arrays() for name, dtype in DTYPES.items() if array.dtype == dtype]
        iterator = cls((1,), 1, batches, len(batch), dtype=(dtypes or ["float32"])[0])
        iterator._repeat.batch = batch
        return iterator

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> SyntheticIterator:
        """Return an iterator that gives `rank` the same batch `batches` times, as every other; no record is marked as
        repeated, whatever `uneven` says.
        """
        Order(1, 1, shuffle=False, seed=0, drop_last=False, rank=rank, world_size=world_size, uneven=uneven)
        part = SyntheticIterator.repeating(self._repeat.batch, len(self))
        part.set_epoch(self.epoch)
        return part


class _Repeat:
    """A `Loader` whose batches are all the same one."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def lay_out(self, numbers: np.ndarray, epoch: int, where: Where) -> Layout:  # noqa: ARG002 - the same whatever is asked for
        return {}

    def task_records(self, records: int, workers: int) -> int:  # noqa: ARG002
        return records

    def load(self, *_: object) -> Mapping[int, RecordError]:
        return {}

    def to_batch(self, arrays: Mapping[str, np.ndarray]) -> Batch:  # noqa: ARG002
        return self.batch

    def error_at(self, where: Where, cause: BaseException) -> RecordError:
        return record_error(self, where[0], "repeat", cause)
