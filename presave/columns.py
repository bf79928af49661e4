"""Columns: the arrays that hold the records of a shard. A storage format only has to store and load such arrays.

A fixed field is one column with a row for each record. A ragged field is two or three columns: all its elements, one
record after another; `.ends`, the position after each record's last element; and `.shapes` if it has several axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from presave.schema import Field, Schema

ENDS, SHAPES = ".ends", ".shapes"
INDEX_DTYPE = "<i8"


@dataclass(frozen=True)
class Column:
    """The dtype and shape of one array of a shard.

    Attributes
    ----------
    name : str
        Unique in the shard, and safe for file names; see `Field.safe_name`.
    dtype : str
        NumPy's string for the dtype, with its byte order.
    shape : tuple of int
        Shape of one row.
    rows : int
        Number of rows.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: int

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return self.rows * self.row_nbytes

    @property
    def row_nbytes(self) -> int:
        """Size of one row in bytes."""
        return int(np.dtype(self.dtype).itemsize * math.prod(self.shape))

    @property
    def array_shape(self) -> tuple[int, ...]:
        """Shape of the array: `(rows, *shape)`."""
        return (self.rows, *self.shape)


def shard_columns(schema: Schema, records: int, elements: Mapping[str, int]) -> list[Column]:
    """Return the columns of a shard."""
    columns = []
    for field in schema.values():
        if not field.is_ragged:
            columns.append(Column(field.safe_name, field.dtype, field.sizes, records))
            continue
        columns.append(Column(field.safe_name, field.dtype, (), elements[field.name]))
        columns.append(Column(field.safe_name + ENDS, INDEX_DTYPE, (), records))
        if len(field.shape) > 1:
            columns.append(Column(field.safe_name + SHAPES, INDEX_DTYPE, (len(field.shape),), records))
    return columns


class ShardBuilder:
    """Collects up to `records` records in memory as the columns of one shard."""

    def __init__(self, schema: Schema, records: int) -> None:
        self._schema = schema
        self._fixed = {name: field.empty(records) for name, field in schema.items() if not field.is_ragged}
        self._ragged: dict[str, list[np.ndarray]] = {name: [] for name, field in schema.items() if field.is_ragged}
        self.records = 0

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Add a record, as `validate_record` returns it."""
        for name, column in self._fixed.items():
            column[self.records] = arrays[name]
        for name, values in self._ragged.items():
            values.append(arrays[name].copy())  # a data set may reuse its buffer
        self.records += 1

    @property
    def elements(self) -> dict[str, int]:
        """For each ragged field, the number of elements that all its values have together."""
        return {name: sum(value.size for value in values) for name, values in self._ragged.items()}

    def columns(self) -> dict[str, np.ndarray]:
        """Return the arrays of all columns by name, in the order of `shard_columns`."""
        columns: dict[str, np.ndarray] = {}
        for name, field in self._schema.items():
            if name in self._fixed:
                columns[field.safe_name] = self._fixed[name][: self.records]
            else:
                columns |= _ragged_columns(field, self._ragged[name])
        return columns


def _ragged_columns(field: Field, values: list[np.ndarray]) -> dict[str, np.ndarray]:
    sizes = np.array([value.size for value in values], dtype=INDEX_DTYPE)
    columns = {
        field.safe_name: np.concatenate([value.reshape(-1) for value in values]).astype(field.dtype, copy=False),
        field.safe_name + ENDS: np.cumsum(sizes, dtype=INDEX_DTYPE),
    }
    if len(field.shape) > 1:
        columns[field.safe_name + SHAPES] = np.array([value.shape for value in values], dtype=INDEX_DTYPE)
    return columns
