"""Strategy `raw`: every record is read and decoded again in every epoch."""

from __future__ import annotations

from etl.dtypes import find_dtype
from etl.iterators.epochs import EpochIterator
from etl.iterators.order import Order
from etl.iterators.record_loader import OnError, RecordLoader
from etl.pipeline import Pipeline
from etl.record import RecordSequence


class RawIterator(EpochIterator):
    """Batches of `pipeline(source[i])`, computed in the caller's thread.

    `dtype` is that of floating features; the last batch of an epoch is smaller, or left out with `drop_last`. With
    `reuse` the memory of a batch serves another one once nothing refers to it any more. With `on_error="skip"` records
    that fail are left out of their batches, and a `UserWarning` at the end of the epoch says which. Raises `ValueError`
    for a batch size below 1 or an unknown dtype, and `RecordError` at the batch of a record that fails.
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
        reuse: bool = True,
        on_error: OnError = "raise",
    ) -> None:
        order = Order(len(source), batch_size, shuffle, seed, drop_last)
        loader = RecordLoader(source, pipeline, find_dtype(dtype), order.seed, on_error)
        super().__init__(order, loader, dtype, reuse=reuse)
