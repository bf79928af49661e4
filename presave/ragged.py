"""Reading ragged fields: find each record's elements in the columns of a shard, and copy or view them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from presave.columns import ENDS, SHAPES
from presave.errors import StoreError
from presave.schema import Field
from presave.shard_formats import ColumnReader


@dataclass(frozen=True)
class Ranges:
    """The elements of some rows of a shard.

    Attributes
    ----------
    starts, ends : int64 array of shape (rows,)
        Row k has the elements `starts[k]` up to, not including, `ends[k]` of the shard's column of elements.
    shapes : int64 array of shape (rows, axes)
        Shape of each row's value.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    shapes: np.ndarray

    @property
    def elements(self) -> int:
        """Number of elements of all rows together."""
        return int(np.sum(self.ends - self.starts))


@dataclass(slots=True)
class ShardValues:
    """The values of a ragged field that come from one shard.

    Attributes
    ----------
    column : ColumnReader
        The shard's column of elements.
    ranges : Ranges
        The elements of each value.
    slots : int64 array of shape (rows,), or slice
        Positions of these values among all values that are gathered.
    """

    column: ColumnReader
    ranges: Ranges
    slots: np.ndarray | slice


def find_ranges(
    field: Field, columns: Mapping[str, ColumnReader], rows: np.ndarray, elements: int, shard_name: str
) -> Ranges:
    """Return the ranges of some rows of a shard.

    Parameters
    ----------
    rows : int64 array of shape (rows,)
        Rows in the shard.

    Raises
    ------
    StoreError
        If the ends and shapes in the shard contradict each other.
    """
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


def gather_values(field: Field, parts: Sequence[ShardValues], records: int, out: np.ndarray | None) -> list[np.ndarray]:
    """Copy the values of a ragged field one after another into a buffer.

    Parameters
    ----------
    out : array of shape (elements,), optional
        The buffer, with room for all elements; by default a new one.

    Returns
    -------
    list of array
        The values in the order of their slots, as views of the buffer.

    Raises
    ------
    StoreError
        If `out` is too small.
    """
    sizes = np.zeros(records, np.int64)
    shapes = np.zeros((records, len(field.shape)), np.int64)
    for part in parts:
        sizes[part.slots] = part.ranges.ends - part.ranges.starts
        shapes[part.slots] = part.ranges.shapes
    places = np.concatenate([[0], np.cumsum(sizes)])
    total = int(places[-1])
    if out is None:
        out = np.empty(total, field.dtype)
    elif len(out) < total:
        raise StoreError(f"out[{field.name!r}] has room for {len(out):,} elements; these records have {total:,}")
    for part in parts:
        part.column.copy_ranges(part.ranges.starts, part.ranges.ends, out, places[:-1][part.slots])
    return [
        out[places[slot] : places[slot + 1]].reshape(shape) for slot, shape in enumerate(map(tuple, shapes.tolist()))
    ]


def view_values(column: ColumnReader, ranges: Ranges) -> list[np.ndarray]:
    """Return the values of consecutive rows as views of the column of elements."""
    first = int(ranges.starts[0])
    elements = column.view(first, int(ranges.ends[-1]))
    return [
        elements[low - first : high - first].reshape(shape)
        for low, high, shape in zip(
            ranges.starts.tolist(), ranges.ends.tolist(), map(tuple, ranges.shapes.tolist()), strict=True
        )
    ]
