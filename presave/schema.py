"""The fields of a store: names, dtypes and shapes, taken from the first record and asked of all others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np

from presave.errors import StoreError

Record = Mapping[str, Any]

# A file name may have 255 bytes, and the shard's number and suffix are in it too.
LONGEST_SAFE_NAME = 200


class RecordSequence(Protocol):
    """A number of records, and any one of them by its number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Record: ...


@dataclass(frozen=True)
class Field:
    """One field of a record: `dtype` as numpy spells it with byte order (`"|u1"`, `"<f4"`), `shape` of one record.

    A ragged field has None for every size: its values have as many axes, of sizes of their own.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    # Kept, since every gather asks for all of them, and a batch of small records takes no longer than asking anew.
    @cached_property
    def numpy_dtype(self) -> np.dtype:
        return np.dtype(self.dtype)

    @cached_property
    def is_ragged(self) -> bool:
        return None in self.shape

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """`shape` of a field that is not ragged."""
        if self.is_ragged:
            raise StoreError(f"field {self.name!r} is ragged: its values have shapes of their own")
        return tuple(size for size in self.shape if size is not None)

    @cached_property
    def safe_name(self) -> str:
        """The name in letters, digits, `_`, `-`, `~` and `%`, for file names and HDF5 paths; differs as names do."""
        return quote(self.name, safe="").replace(".", "%2E")

    def empty(self, records: int) -> np.ndarray:
        """An uninitialised array of shape `(records, *shape)`; raises `StoreError` for a ragged field."""
        return np.empty((records, *self.sizes), dtype=self.dtype)

    def __str__(self) -> str:
        axes = ", ".join("*" if size is None else str(size) for size in self.shape)
        return f"{self.numpy_dtype} [{axes}]"


Schema = dict[str, Field]


def infer_schema(record: Record, ragged: Collection[str] = (), number: int = 0) -> Schema:
    """The schema of `record`, whose fields `ragged` vary in size; Python ints become int64, floats float64.

    A name `x` in `ragged` also stands for those of `x.0`, `x.1` and so on that have an axis. `number` is that of the
    record, for errors. Raises `StoreError` where a field is not an array or a number, would need pickle to be stored,
    or is named in `ragged` and not there.
    """
    if not isinstance(record, Mapping) or not record:
        raise StoreError(
            f"record {number} is {type(record).__name__}; a record is a mapping of field name to array or number"
        )
    unknown = sorted(set(ragged) - record.keys() - set(map(_group, filter(_is_name, record))))
    if unknown:
        raise StoreError(f"ragged names {', '.join(map(repr, unknown))}, which record {number} does not have")
    schema = {}
    for name, value in record.items():
        if not _is_name(name):
            raise StoreError(f"record {number}: field name {name!r} is not a string of at least one character")
        array = _as_array(value, name, number)
        if array.dtype.kind not in "biufc":
            raise StoreError(
                f"record {number}: field {name!r} has dtype {array.dtype}, which cannot be stored; "
                "use a boolean, integer, float or complex dtype"
            )
        if name in ragged and array.ndim == 0:
            raise StoreError(f"record {number}: field {name!r} is one number, which cannot be ragged")
        is_ragged = name in ragged or (array.ndim > 0 and _group(name) in ragged)
        if array.size == 0 and not is_ragged:
            raise StoreError(f"record {number}: field {name!r} has shape {array.shape}, which holds nothing to store")
        shape = (None,) * array.ndim if is_ragged else array.shape
        field = Field(name, array.dtype.newbyteorder("<").str, shape)
        try:
            length = len(field.safe_name)
        except UnicodeEncodeError as error:
            raise StoreError(f"record {number}: field name {name!r} is not text ({error.reason}); rename it") from error
        if length > LONGEST_SAFE_NAME:
            raise StoreError(
                f"record {number}: field name {name!r} takes {length} characters in a file name; "
                f"shorten it to {LONGEST_SAFE_NAME}"
            )
        schema[name] = field
    return schema


def conform(record: Record, schema: Schema, number: int) -> dict[str, np.ndarray]:
    """The arrays of `record`, C-contiguous and in the dtypes of `schema`; `number` is named in errors.

    Raises `StoreError` where a field is missing, unknown, or of another dtype or shape than in the first record.
    """
    if not isinstance(record, Mapping):
        raise StoreError(f"record {number} is {type(record).__name__}; the first is a mapping")
    if record.keys() != schema.keys():
        raise StoreError(f"record {number} has fields {list(record)}; the first has {list(schema)}")
    arrays = {}
    for name, field in schema.items():
        array = _as_array(record[name], name, number)
        # Small records cost little else than these checks: what is stored as it is must pass them in a few of them.
        is_same = array.dtype.str == field.dtype
        alike = array.shape == field.shape or (field.is_ragged and array.ndim == len(field.shape))
        if not alike or not (is_same or array.dtype.newbyteorder("<").str == field.dtype):
            raise StoreError(
                f"record {number}: field {name!r} is {array.dtype} of shape {array.shape}; the first is {field}. "
                f"Presave after a stage that makes all records alike, or pass ragged=[{name!r}]"
            )
        is_kept = is_same and array.flags.c_contiguous
        arrays[name] = array if is_kept else np.asarray(array, dtype=field.dtype, order="C")
    return arrays


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name)


def _group(name: str) -> str | None:
    """`"features"` of `"features.0"`."""
    group, _, place = name.rpartition(".")
    return group if group and place.isdecimal() else None


def _as_array(value: Any, name: str, number: int) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise StoreError(f"record {number}: field {name!r} is no array ({error}); pad it to one shape") from error
