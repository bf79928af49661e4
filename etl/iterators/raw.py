"""Strategy `raw`: every record is read and decoded again in every epoch."""

from __future__ import annotations

import numpy as np

from etl.batch import Batch
from etl.dtypes import find_dtype
from etl.iterators.collate import Collator
from etl.iterators.epochs import EpochIterator
from etl.iterators.order import Order
from etl.pipeline import Pipeline
from etl.record import RecordSequence
from etl.records import read_record


class RawIterator(EpochIterator):
    """Batches of `pipeline(source[i])`, computed in the caller's thread.

    `dtype` is that of floating features; the last batch of an epoch is smaller, or left out with `drop_last`. Raises
    `ValueError` for a batch size below 1 or an unknown dtype, and `RecordError` at the batch of a record that fails.
    """

    def __init__(
        self,
        source: RecordSequence,
        pipeline: Pipeline,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
        seed: int = 0,
        dtype: str = "float32",
        drop_last: bool = False,
    ) -> None:
        super().__init__(Order(len(source), batch_size, shuffle, seed, drop_last), dtype)
        self._source = source
        self._collator = Collator(source, pipeline, find_dtype(dtype))

    def _load(self, numbers: np.ndarray) -> Batch:
        # Bound by the decoder: benchmarks/end_to_end.py measures it as `raw`.
        records = ((number, read_record(self._source, number)) for number in numbers.tolist())
        return self._collator.collate(records, len(numbers))
