"""The number of steps of each record, known without loading it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

import presave
from etl.loading.padding import Padding
from etl.sources.record import RecordSequence, source_name
from etl.stages.fields import MASKS, batch_fields, group_of
from etl.stages.pipeline import Pipeline
from etl.stages.stage import AnyStage, changes_length

# Records whose shapes are read from a store at once.
CHUNK_RECORDS = 1 << 20


@dataclass(frozen=True, eq=False)
class Lengths:
    """The number of steps of each record after the pipeline.

    Attributes
    ----------
    fields : mapping of str to int64 array of shape (records,)
        Steps by field; the name of a tuple stands for all of its arrays.
    origin : str
        Where they come from, for error messages.
    """

    fields: Mapping[str, np.ndarray]
    origin: str

    def of(self, name: str) -> np.ndarray | None:
        """Return the steps of the field `name`; None if they are not known."""
        found = self.fields.get(name)
        return self.fields.get(group_of(name)) if found is None else found

    @cached_property
    def longest(self) -> np.ndarray | None:
        """For each record the steps of its longest input; None if they are not known."""
        inputs = [array for name, array in self.fields.items() if group_of(name) == "features"]
        return reduce(np.maximum, inputs) if inputs else None


def source_lengths(source: RecordSequence, pipeline: Pipeline) -> Lengths | None:
    """Return the lengths that `source.lengths` gives; None if it has none or a stage changes them.

    That is an array of integers of shape `(records,)` for all padded fields, or a mapping with such an array for each
    field. Raises `ValueError` for anything else.
    """
    given: Any = getattr(source, "lengths", None)
    if given is None or _are_changed((*pipeline.preceding, *pipeline.stages)):
        return None
    fields = {}
    for name, values in given.items() if isinstance(given, Mapping) else ((name, given) for name in MASKS):
        array = np.asarray(values)
        if array.shape != (len(source),) or array.dtype.kind not in "iu":
            raise ValueError(
                f"the lengths of {source_name(source)} are {array.dtype} of shape {array.shape}; "
                f"they must be whole numbers, one for each of its {len(source)} records"
            )
        fields[name] = array.astype(np.int64, copy=False)
    return Lengths(fields, f"the lengths of {source_name(source)}")


def store_lengths(store: presave.Store, pipeline: Pipeline, padding: Padding) -> Lengths | None:
    """Return the lengths of the padded fields of `store`; None if a stage of `pipeline` changes them.

    They are read at once and take 8 bytes for each record and field.

    Parameters
    ----------
    store : presave.Store
        Its manifest or shards have the shape of every record.
    pipeline : Pipeline
        The stages that are left.
    padding : Padding
        Which fields are padded.
    """
    if _are_changed(pipeline.stages):
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

    Parameters
    ----------
    lengths : Lengths or None
        Steps of every record, if known.
    padding : Padding or None
        How batches are padded.
    bucket_records : int or None
        Records of a bucket.
    name : str
        The data set, for error messages.

    Raises
    ------
    ValueError
        If there are buckets without padding, or lengths are not known.
    """
    if bucket_records is None:
        return None
    if padding is None:
        raise ValueError("bucket_records puts records of similar lengths together, to be padded: pass padding, too")
    longest = None if lengths is None else lengths.longest
    if longest is None:
        raise ValueError(
            f"bucket_records needs lengths before records are loaded, and {name} does not say them, or a stage changes "
            "them: give the source `lengths` (whole numbers, the steps of each record), or presave it after that stage"
        )
    return longest


def _are_changed(stages: Iterable[AnyStage]) -> bool:
    return any(map(changes_length, stages))
