"""How many steps each record has, known without loading it."""

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
    """The steps of each finished record: for a field, or all arrays of a tuple, int64 of shape `(records,)`.

    `told_by` is what messages call the one who says so.
    """

    fields: Mapping[str, np.ndarray]
    told_by: str

    def of(self, name: str) -> np.ndarray | None:
        """Those of the field `name`; None where they are not known."""
        found = self.fields.get(name)
        return self.fields.get(group_of(name)) if found is None else found

    @cached_property
    def longest(self) -> np.ndarray | None:
        """Of each record the steps of its longest input; None where they are not known."""
        inputs = [array for name, array in self.fields.items() if group_of(name) == "features"]
        return reduce(np.maximum, inputs) if inputs else None


def source_lengths(source: RecordSequence, pipeline: Pipeline) -> Lengths | None:
    """What `source.lengths` says: whole numbers of shape `(records,)` for all padded fields, or such an array for each
    field; None where there is none, or a stage changes them. Raises `ValueError` for anything else.
    """
    told: Any = getattr(source, "lengths", None)
    if told is None or _are_changed((*pipeline.preceding, *pipeline.stages)):
        return None
    fields = {}
    for name, values in told.items() if isinstance(told, Mapping) else ((name, told) for name in MASKS):
        array = np.asarray(values)
        if array.shape != (len(source),) or array.dtype.kind not in "iu":
            raise ValueError(
                f"the lengths of {source_name(source)} are {array.dtype} of shape {array.shape}; "
                f"they must be whole numbers, one for each of its {len(source)} records"
            )
        fields[name] = array.astype(np.int64, copy=False)
    return Lengths(fields, f"the lengths of {source_name(source)}")


def store_lengths(store: presave.Store, pipeline: Pipeline, padding: Padding) -> Lengths | None:
    """What `store` says of the shapes of fields that are padded, read at once, 8 bytes a record and field; None where
    a stage that is left changes them.
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
    """What records are sorted by into buckets; None where there are none. `name` is that of the data set.

    Raises `ValueError` for buckets without padding, or where lengths are not known.
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
