"""Strategy `raw`: every record is read and decoded again in every epoch."""

from __future__ import annotations

from collections.abc import Mapping

from etl.arguments import describe
from etl.iterators.indexed import IndexedIterator
from etl.loading.lengths import bucket_lengths, source_lengths
from etl.loading.padder import Padder
from etl.loading.padding import Padding
from etl.loading.record_loader import OnError, RecordLoader
from etl.loading.records import check_stages_before, ragged_fields
from etl.loading.sampler import Sampler
from etl.sources.identity import source_digests
from etl.sources.record import RecordSequence, check_source, source_name
from etl.stages.dtypes import find_dtype
from etl.stages.pipeline import Pipeline
from etl.stages.presets import default_pipeline


class RawIterator(IndexedIterator):
    """Yields batches of `pipeline(source[i])`, computed in the caller's thread.

    Parameters
    ----------
    source : sequence of records
        The records: mappings with `features` and `label`. Either is a tuple of arrays if a record has several inputs or
        labels.
    pipeline : Pipeline, optional
        The stages that each record goes through. By default those that suit a source of etl, or a `Subset`
        of one, such as `image_pipeline()` for photographs; none for other sources.
    batch_size : int
        Records in a batch. The last batch of an epoch may have fewer.
    shuffle : bool
        Shuffle the records, in another order for every epoch.
    seed : int
        Seeds the order and random stages, together with the epoch.
    dtype : {"float16", "bfloat16", "float32", "float64"} or None
        The dtype of floating features, labels and masks. None leaves each as it is; masks are then float32.
    drop_last : bool
        Leave out an incomplete last batch.
    reuse : bool
        Reuse the memory of a batch when nothing refers to the batch any more.
    on_error : {"raise", "skip"}
        Raise `RecordError` for a record that fails, or leave the record out of its batch. A `UserWarning` at the end of
        the epoch then says how many were skipped, with the first errors. What is not the record's fault is raised: too
        many open files, too little memory, a failing disk or network, a folder that is gone, a missing package.
    padding : Padding, optional
        Pads records of different lengths, which are an error without it.
    bucket_records : int, optional
        Sort windows of this many records by length and shuffle the batches of each window, so that a batch holds
        similar lengths and little padding. Needs `padding`.

    Raises
    ------
    TypeError
        If `pipeline` is something else.
    ValueError
        If the source is a path, or empty, an argument is invalid, or there are buckets and lengths are unknown; if the
        source is a store, or a `Subset` of one, of another pipeline than the one that `pipeline` is the rest of.
    RecordError
        While iterating, at the batch of a record that fails.

    Notes
    -----
    Lengths come from `source.lengths`, unless a stage changes them: an integer array with the steps of each record, or
    a mapping of field name to such an array. Stages of etl change the lengths of features alone. If lengths are
    unknown, a single thread loads all records of a batch to find the longest, in this process also with worker
    processes.

    Examples
    --------
    >>> source = etl.ImageFolder("photos")
    >>> iterator = etl.RawIterator(source, etl.image_pipeline(size=64), batch_size=16, shuffle=True, seed=0)
    >>> for features, labels in iterator:
    ...     print(features.shape, features.dtype)
    (16, 3, 64, 64) float32
    (16, 3, 64, 64) float32
    (8, 3, 64, 64) float32
    """

    def __init__(
        self,
        source: RecordSequence,
        pipeline: Pipeline | None = None,
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
        check_source(source)
        if pipeline is None:
            pipeline = default_pipeline(source)
        elif not isinstance(pipeline, Pipeline):
            raise TypeError(
                f"pipeline is {describe(pipeline)}, not an etl.Pipeline; etl.Pipeline([stage, ...]) makes one"
            )
        check_stages_before(source, pipeline)
        padder, lengths = None, None
        if padding is not None:
            lengths = source_lengths(source, pipeline)
            ragged = ragged_fields(source, (*pipeline.preceding, *pipeline.stages))
            padder = Padder(padding, ragged, lengths, find_dtype(dtype))
        longest = bucket_lengths(lengths, padding, bucket_records, source_name(source))
        sampler = Sampler(
            len(source), batch_size, shuffle, seed, drop_last, bucket_records=bucket_records, lengths=longest
        )
        loader = RecordLoader(source, pipeline, find_dtype(dtype), sampler.seed, on_error, padder)
        super().__init__(sampler, loader, dtype, reuse=reuse)
        self.records = source

    def _identify(self) -> Mapping[str, str]:
        return source_digests(self.records)
