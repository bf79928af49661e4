"""The fields of a store: names, dtypes and shapes, taken from the first record and asked of all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    """One field of a record: `dtype` as numpy spells it with byte order (`"|u1"`, `"<f4"`), `shape` of one record."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def record_nbytes(self) -> int:
        """Bytes that one record's value takes."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

    @property
    def safe_name(self) -> str:
        """The name in letters, digits, `_`, `-`, `~` and `%`, for file names and HDF5 paths; differs as names do."""
        return quote(self.name, safe="").replace(".", "%2E")

    def empty(self, records: int) -> np.ndarray:
        """An uninitialised array of shape `(records, *shape)`."""
        return np.empty((records, *self.shape), dtype=self.dtype)


Schema = dict[str, Field]


def infer_schema(record: Record) -> Schema:
    """The schema of `record`; Python ints become int64, floats float64.

    Raises `StoreError` where a field is not an array or a number, or would need pickle to be stored.
    """
    if not isinstance(record, Mapping) or not record:
        raise StoreError(f"record 0 is {type(record).__name__}; a record is a mapping of field name to array or number")
    schema = {}
    for name, value in record.items():
        if not isinstance(name, str) or not name:
            raise StoreError(f"record 0: field name {name!r} is not a string of at least one character")
        array = _as_array(value, name, 0)
        if array.dtype.kind not in "biufc":
            raise StoreError(
                f"record 0: field {name!r} has dtype {array.dtype}, which cannot be stored; "
                "use a boolean, integer, float or complex dtype"
            )
        if array.size == 0:
            raise StoreError(f"record 0: field {name!r} has shape {array.shape}, which holds nothing to store")
        field = Field(name, array.dtype.newbyteorder("<").str, array.shape)
        try:
            length = len(field.safe_name)
        except UnicodeEncodeError as error:
            raise StoreError(f"record 0: field name {name!r} is not text ({error.reason}); rename it") from error
        if length > LONGEST_SAFE_NAME:
            raise StoreError(
                f"record 0: field name {name!r} takes {length} characters in a file name; "
                f"shorten it to {LONGEST_SAFE_NAME}"
            )
        schema[name] = field
    return schema


def conform(record: Record, schema: Schema, number: int) -> dict[str, np.ndarray]:
    """The arrays of `record`, C-contiguous and in the dtypes of `schema`; `number` is named in errors.

    Raises `StoreError` where a field is missing, unknown, or of another dtype or shape than in record 0.
    """
    if not isinstance(record, Mapping):
        raise StoreError(f"record {number} is {type(record).__name__}; record 0 is a mapping")
    if record.keys() != schema.keys():
        raise StoreError(f"record {number} has fields {list(record)}; record 0 has {list(schema)}")
    arrays = {}
    for name, field in schema.items():
        array = _as_array(record[name], name, number)
        if array.shape != field.shape or array.dtype.newbyteorder("<").str != field.dtype:
            raise StoreError(
                f"record {number}: field {name!r} is {array.dtype} of shape {array.shape}; record 0 has "
                f"{np.dtype(field.dtype)} of shape {field.shape}. Presave after a stage that makes all records alike"
            )
        arrays[name] = np.asarray(array, dtype=field.dtype, order="C")
    return arrays


def _as_array(value: Any, name: str, number: int) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise StoreError(f"record {number}: field {name!r} is no array ({error}); pad it to one shape") from error
