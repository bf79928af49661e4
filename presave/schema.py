"""The fields of a store: their names, dtypes and shapes, inferred from the first record and required of all others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np

from presave.errors import StoreError

Record = Mapping[str, Any]

# A file name may have 255 bytes, some of which are needed for the shard's number and a suffix.
MAX_SAFE_NAME_LENGTH = 200
# What `is_masked` finds, and what to do.
MASKED = "masked elements, which an array cannot tell from others; fill them, as in value.filled(0)"


class RecordSequence(Protocol):
    """Records with random access: a length, and `records[index]`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Record: ...


@dataclass(frozen=True)
class Field:
    """One field of a record.

    Attributes
    ----------
    name : str
        Key of the field in a record.
    dtype : str
        NumPy's string for the dtype, with its byte order: `"|u1"`, `"<f4"`.
    shape : tuple of int or None
        Shape of the field in one record. In a ragged field every size is None: all values have this many axes, but each
        value has its own sizes.

    Examples
    --------
    >>> field = presave.Field("image", "|u1", (224, 224, 3))
    >>> print(field)
    uint8 [224, 224, 3]
    >>> field.empty(64).shape
    (64, 224, 224, 3)
    >>> presave.Field("tokens", "<i8", (None,)).is_ragged
    True
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    # Cached, because every gather needs these properties, and computing them takes as long as a batch of small records.
    @cached_property
    def numpy_dtype(self) -> np.dtype:
        """`dtype` as a NumPy object."""
        return np.dtype(self.dtype)

    @cached_property
    def is_ragged(self) -> bool:
        """True if each record's value has a shape of its own."""
        return None in self.shape

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """`shape` of a field that is not ragged; raises `StoreError` if it is."""
        if self.is_ragged:
            raise StoreError(f"field {self.name!r} is ragged: its values have shapes of their own")
        return tuple(size for size in self.shape if size is not None)

    @cached_property
    def safe_name(self) -> str:
        """The name, percent-encoded for file names and HDF5 paths: letters, digits, `_`, `-`, `~` and `%`.

        Different names have different encodings.
        """
        return quote(self.name, safe="").replace(".", "%2E")

    def empty(self, records: int) -> np.ndarray:
        """Return an uninitialised array of shape `(records, *shape)`; raise `StoreError` if the field is ragged."""
        return np.empty((records, *self.sizes), dtype=self.dtype)

    def __str__(self) -> str:
        axes = ", ".join("*" if size is None else str(size) for size in self.shape)
        return f"{self.numpy_dtype} [{axes}]"


Schema = dict[str, Field]


def infer_schema(record: Record, ragged: Collection[str], index: int) -> Schema:
    """Return the schema of a record. Python ints become int64, floats become float64.

    Parameters
    ----------
    ragged : collection of str
        Names of fields whose shape varies between records. The name `x` also covers the fields `x.0`, `x.1` and so on,
        unless they are scalars.

    Raises
    ------
    StoreError
        If a field is neither an array nor a number, has a dtype that only pickle could store, or is listed in `ragged`
        but missing.
    """
    if not isinstance(record, Mapping) or not record:  # type: ignore[redundant-expr]  # it is the user's
        raise StoreError(
            f"record {index} is {type(record).__name__}; a record is a mapping of field name to array or number"
        )
    unknown = sorted(set(ragged) - record.keys() - set(map(group_of, filter(_is_name, record))))
    if unknown:
        raise StoreError(f"ragged contains {', '.join(map(repr, unknown))}, which record {index} does not have")
    schema = {}
    for name, value in record.items():
        if not _is_name(name):
            raise StoreError(f"record {index}: field name {name!r} is not a string of at least one character")
        array = _as_array(value, name, index)
        if array.dtype.kind not in "biufc":
            raise StoreError(
                f"record {index}: field {name!r} has dtype {array.dtype}, which cannot be stored; "
                "use a boolean, integer, float or complex dtype"
            )
        if name in ragged and array.ndim == 0:
            raise StoreError(f"record {index}: field {name!r} is a scalar, which cannot be ragged")
        is_ragged = name in ragged or (array.ndim > 0 and group_of(name) in ragged)
        if array.size == 0 and not is_ragged:
            raise StoreError(f"record {index}: field {name!r} has shape {array.shape}, which has no elements to store")
        shape = (None,) * array.ndim if is_ragged else array.shape
        field = Field(name, array.dtype.newbyteorder("<").str, shape)
        try:
            length = len(field.safe_name)
        except UnicodeEncodeError as error:
            raise StoreError(f"record {index}: field name {name!r} is not text ({error.reason}); rename it") from error
        if length > MAX_SAFE_NAME_LENGTH:
            raise StoreError(
                f"record {index}: field name {name!r} takes {length} characters in a file name; "
                f"shorten it to {MAX_SAFE_NAME_LENGTH}"
            )
        schema[name] = field
    return schema


def validate_record(record: Record, schema: Schema, index: int) -> dict[str, np.ndarray]:
    """Check a record against the schema and return its arrays.

    Returns
    -------
    dict of str to array
        C-contiguous arrays of the dtypes in `schema`. Arrays that already are such are not copied.

    Raises
    ------
    StoreError
        If a field is missing, unknown, or has another dtype or shape than in the first record.
    """
    if not isinstance(record, Mapping):
        raise StoreError(f"record {index} is {type(record).__name__}; the first is a mapping")
    if record.keys() != schema.keys():
        raise StoreError(f"record {index} has fields {list(record)}; the first has {list(schema)}")
    arrays = {}
    for name, field in schema.items():
        array = _as_array(record[name], name, index)
        # Checks like these are most of the cost of a small record, so the slow comparisons and conversions come last.
        is_same_dtype = array.dtype.str == field.dtype
        is_of_dtype = is_same_dtype or array.dtype.newbyteorder("<").str == field.dtype
        fits = array.shape == field.shape or (field.is_ragged and array.ndim == len(field.shape))
        if not (fits and is_of_dtype):
            advice = "give all values, empty ones too, one dtype and number of axes, as in np.zeros((0, 4), np.float32)"
            if is_of_dtype and array.ndim == len(field.shape) and not field.is_ragged:
                advice = f"pass ragged=[{name!r}]"
            raise StoreError(
                f"record {index}: field {name!r} is {array.dtype} of shape {array.shape}; the first is {field}. "
                f"Presave after a stage that makes all records alike, or {advice}"
            )
        is_kept = is_same_dtype and array.flags.c_contiguous
        arrays[name] = array if is_kept else np.asarray(array, dtype=field.dtype, order="C")
    return arrays


def group_of(name: str) -> str:
    """Return the name of a field without its place in a tuple: "features" for "features.0" and for "features"."""
    group, _, place = name.rpartition(".")
    return group if group and place.isdecimal() else name


def is_masked(value: Any) -> bool:
    """Return True if `value` is a masked array with masked elements: `np.asarray` would return what the mask hides."""
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and bool(name)


def _as_array(value: Any, name: str, index: int) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise StoreError(f"record {index}: field {name!r} is not an array ({error}); pad it to one shape") from error
    except (TypeError, RuntimeError) as error:  # of a tensor on a device, of bfloat16, or that requires grad
        raise StoreError(
            f"record {index}: field {name!r} is not an array ({error}); make it one, such as by "
            "tensor.detach().cpu().float().numpy()"
        ) from error
    if array is not value and is_masked(value):
        raise StoreError(f"record {index}: field {name!r} has {MASKED}")
    return array
