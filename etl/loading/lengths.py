"""Lengths: the number of steps of each record, known before the record is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

import presave
from etl.loading.padding import Padding
from etl.sources.record import RecordSequence, source_name
from etl.stages.fields import MASKS, batch_fields, group_of
from etl.stages.pipeline import Pipeline
from etl.stages.stage import changes_length

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
    an array. Raises `ValueError` if it is anything else.
    """
    given: Any = getattr(source, "lengths", None)
    if given is None or any(map(changes_length, (*pipeline.preceding, *pipeline.stages))):
        return None
    fields = {}
    for name, values in given.items() if isinstance(given, Mapping) else ((name, given) for name in MASKS):
        array = np.asarray(values)
        if array.shape != (len(source),) or array.dtype.kind not in "iu":
            raise ValueError(
                f"the lengths of {source_name(source)} are {array.dtype} of shape {array.shape}; "
                f"they must be integers, one for each of its {len(source)} records"
            )
        fields[name] = array.astype(np.int64, copy=False)
    return Lengths(fields, f"the lengths of {source_name(source)}")


def store_lengths(store: presave.Store, pipeline: Pipeline, padding: Padding) -> Lengths | None:
    """Return the lengths of the padded fields of `store`; None if a stage of `pipeline` changes them.

    All lengths are read in this call. They take 8 bytes for each record and field.
    """
    if any(map(changes_length, pipeline.stages)):
        return None
    ragged = [name for name, field in store.fields.items() if field.is_ragged]
    fields = {}
    for name in batch_fields(store.fields):
        if store.fields[name].shape and padding.pads(name, ragged):
            fields[name] = array = np.empty(len(store), np.int64)
            for first in range(0, len(store), CHUNK_RECORDS):
                part = range(first, min(first + CHUNK_RECORDS, len(store)))
                array[first : part.stop] = store.shapes(name, part)[:, 0]
    return Lengths(fields, f"the shapes in {store.path}")


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
