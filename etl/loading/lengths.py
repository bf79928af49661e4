"""Lengths: the number of steps of each record, known before the record is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

import presave
from etl.loading.padding import Padding
from etl.sources.record import RecordSequence, source_name
from etl.stages.fields import MASKS, batch_fields
from etl.stages.pipeline import Pipeline
from etl.stages.stage import AnyStage, changes_length, is_of_etl
from presave.schema import group_of
from presave.store import ragged_of

# Records whose shapes are read from a store in one call.
CHUNK_RECORDS = 1 << 20


@dataclass(frozen=True, eq=False)
class Lengths:
    """The number of steps of each record after the pipeline.

    Attributes
    ----------
    fields : mapping of str to int64 array of shape (records,)
        Steps by field name. The name of a tuple applies to all of its arrays.
    origin : str
        The origin of the lengths, for error messages.
    """

    fields: Mapping[str, np.ndarray]
    origin: str

    def of(self, name: str) -> np.ndarray | None:
        """Return the steps of the field `name`, int64 of shape `(records,)`; None if they are unknown."""
        found = self.fields.get(name)
        return self.fields.get(group_of(name)) if found is None else found

    @cached_property
    def longest(self) -> NDArray[np.int64] | None:
        """The steps of each record's longest input, of shape `(records,)`; None if they are unknown."""
        inputs = [array for name, array in self.fields.items() if group_of(name) == "features"]
        return reduce(np.maximum, inputs) if inputs else None


def source_lengths(source: RecordSequence, pipeline: Pipeline) -> Lengths | None:
    """Return the lengths in `source.lengths`; None if the source has no such attribute, or a stage changes lengths.

    `source.lengths` is an integer array of shape `(records,)` for all padded fields, or a mapping of field name to such
    an array, in which those of labels remain if stages of etl change the lengths of features. Raises `ValueError` if it
    is anything else.
    """
    given: Any = getattr(source, "lengths", None)
    stages = (*pipeline.preceding, *pipeline.stages)
    if given is None or (any(map(changes_length, stages)) and not isinstance(given, Mapping)):
        return None
    fields = {}
    for name, values in given.items() if isinstance(given, Mapping) else ((name, given) for name in MASKS):
        array = np.asarray(values)
        if array.shape != (len(source),) or array.dtype.kind not in "iu":
            raise ValueError(
                f"the lengths of {source_name(source)} are {array.dtype} of shape {array.shape}; "
                f"they must be integers, one for each of its {len(source)} records"
            )
        if _keep_lengths(stages, name):
            fields[name] = array.astype(np.int64, copy=False)
    return Lengths(fields, f"the lengths of {source_name(source)}")


def store_lengths(store: presave.Store, pipeline: Pipeline, padding: Padding) -> Lengths:
    """Return the lengths of those padded fields of `store` whose lengths no stage of `pipeline` changes.

    All lengths are read in this call. They take 8 bytes for each record and field.
    """
    ragged = ragged_of(store)
    fields = {}
    for name in batch_fields(store.fields):
        if store.fields[name].shape and padding.pads(name, ragged) and _keep_lengths(pipeline.stages, name):
            fields[name] = array = np.empty(len(store), np.int64)
            for first in range(0, len(store), CHUNK_RECORDS):
                part = range(first, min(first + CHUNK_RECORDS, len(store)))
                array[first : part.stop] = store.shapes(name, part)[:, 0]
    return Lengths(fields, f"the shapes in {store.path}")


def _keep_lengths(stages: Iterable[AnyStage], name: str) -> bool:
    """Return whether the field `name` has as many steps after `stages` as before: those of etl leave labels alone."""
    changing = [stage for stage in stages if changes_length(stage)]
    return not changing or (group_of(name) != "features" and all(map(is_of_etl, changing)))


def bucket_lengths(
    lengths: Lengths | None, padding: Padding | None, bucket_records: int | None, name: str
) -> np.ndarray | None:
    """Return the lengths that records are sorted by into buckets; None if there are no buckets.

    Raises `ValueError` if there are buckets, and there is no padding or the lengths of `name`'s records are unknown.
    """
    if bucket_records is None:
        return None
    if padding is None:
        raise ValueError("bucket_records puts records of similar lengths into a batch, which pads them: pass padding")
    longest = None if lengths is None else lengths.longest
    if longest is None:
        raise ValueError(
            f"bucket_records needs lengths before records are loaded, but {name} has none, or a stage changes them: "
            "give the source an attribute `lengths` (the steps of each record), or presave it after that stage"
        )
    return longest
