"""Reading ragged fields: where the values of some records lie among a shard's elements, and copying them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from presave.columns import ENDS, SHAPES
from presave.errors import StoreError
from presave.formats import ColumnReader
from presave.schema import Field


@dataclass(frozen=True)
class Ranges:
    """For some rows of a shard, where the elements of each start and end, int64 of shape `(rows,)`, and the shape of
    its value, `(rows, axes)`.
    """

    starts: np.ndarray
    ends: np.ndarray
    shapes: np.ndarray

    @property
    def elements(self) -> int:
        """Of all rows together."""
        return int(np.sum(self.ends - self.starts))


def find_ranges(
    field: Field, columns: Mapping[str, ColumnReader], rows: np.ndarray, elements: int, shard_name: str
) -> Ranges:
    """The ranges of `rows` in a shard that holds so many `elements`; raises `StoreError` where they contradict."""
    everything = slice(0, len(rows))
    ends, starts = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    columns[field.safe_name + ENDS].gather(rows, ends, everything)
    columns[field.safe_name + ENDS].gather(np.maximum(rows - 1, 0), starts, everything)
    starts[rows == 0] = 0
    shapes = np.empty((len(rows), len(field.shape)), np.int64)
    if len(field.shape) == 1:
        shapes[:, 0] = ends - starts
    else:
        columns[field.safe_name + SHAPES].gather(rows, shapes, everything)
    within = (starts >= 0) & (ends >= starts) & (ends <= elements)
    if not (within & (shapes >= 0).all(axis=1) & (shapes.prod(axis=1) == ends - starts)).all():
        raise StoreError(
            f"{shard_name}: the sizes of {field.name!r} contradict each other; `etl verify` names the damaged file"
        )
    return Ranges(starts, ends, shapes)


def gather_values(
    field: Field,
    parts: Sequence[tuple[ColumnReader, Ranges, np.ndarray | slice]],
    records: int,
    out: np.ndarray | None,
) -> list[np.ndarray]:
    """The values of `records` records, one after another in `out` or in a new array.

    `parts` are for each shard its column of elements, the ranges in it, and the places of these values among all.
    Raises `StoreError` where `out` has too little room.
    """
    sizes = np.zeros(records, np.int64)
    shapes = np.zeros((records, len(field.shape)), np.int64)
    for _, ranges, slots in parts:
        sizes[slots] = ranges.ends - ranges.starts
        shapes[slots] = ranges.shapes
    places = np.concatenate([[0], np.cumsum(sizes)])
    total = int(places[-1])
    if out is None:
        out = np.empty(total, field.dtype)
    elif len(out) < total:
        raise StoreError(f"out[{field.name!r}] has room for {len(out):,} elements; these records have {total:,}")
    for column, ranges, slots in parts:
        column.copy_ranges(ranges.starts, ranges.ends, out, places[:-1][slots])
    return [
        out[places[slot] : places[slot + 1]].reshape(shape) for slot, shape in enumerate(map(tuple, shapes.tolist()))
    ]


def view_values(column: ColumnReader, ranges: Ranges) -> list[np.ndarray]:
    """The values of consecutive rows, as views of the column."""
    first = int(ranges.starts[0])
    elements = column.view(first, int(ranges.ends[-1]))
    return [
        elements[low - first : high - first].reshape(shape)
        for low, high, shape in zip(
            ranges.starts.tolist(), ranges.ends.tolist(), map(tuple, ranges.shapes.tolist()), strict=True
        )
    ]
