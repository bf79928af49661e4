"""Strategy `raw`: every record is read and decoded again in every epoch."""

from __future__ import annotations

from etl.iterators.indexed import EpochIterator
from etl.iterators.sampler import Order
from etl.loading.lengths import bucket_lengths, source_lengths
from etl.loading.padder import Padder
from etl.loading.padding import Padding
from etl.loading.record_loader import OnError, RecordLoader
from etl.loading.records import ragged_after
from etl.sources.record import RecordSequence, source_name
from etl.stages.dtypes import find_dtype
from etl.stages.pipeline import Pipeline


class RawIterator(EpochIterator):
    """Batches of `pipeline(source[i])`, computed in the caller's thread.

    `dtype` is that of floating features; the last batch of an epoch is smaller, or left out with `drop_last`. With
    `reuse` the memory of a batch serves another one once nothing refers to it any more. With `on_error="skip"` records
    that fail are left out of their batches, and a `UserWarning` at the end of the epoch says which.

    Records may have several inputs and labels: tuples of arrays, and so have batches. With `padding` their lengths may
    differ. With `bucket_records`, too, windows of so many records of the epoch's order are sorted by length, and the
    batches of each shuffled, so that batches hold similar lengths and little padding. Lengths are those that
    `source.lengths` says (int64, steps of each record; or such an array for each field), unless a stage changes them;
    otherwise a batch is loaded, by one thread, to find them out.

    Raises `ValueError` for a batch size below 1, an unknown dtype, or buckets where lengths are not known, and
    `RecordError` at the batch of a record that fails.
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
        padding: Padding | None = None,
        bucket_records: int | None = None,
    ) -> None:
        lengths = source_lengths(source, pipeline) if padding is not None else None
        longest = bucket_lengths(lengths, padding, bucket_records, source_name(source))
        order = Order(len(source), batch_size, shuffle, seed, drop_last, bucket_records=bucket_records, lengths=longest)
        padder = None
        if padding is not None:
            ragged = ragged_after(getattr(source, "ragged", ()), (*pipeline.preceding, *pipeline.stages))
            padder = Padder(padding, ragged, lengths, find_dtype(dtype))
        loader = RecordLoader(source, pipeline, find_dtype(dtype), order.seed, on_error, padder)
        super().__init__(order, loader, dtype, reuse=reuse)
