"""Writing the fields of one record into the arrays of a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from etl.stages.dtypes import is_floating
from etl.stages.fields import batch_fields, check_same_places, flatten
from presave import Record
from presave.schema import MASKED, is_masked

# What to do about records of other shapes.
RESIZE = (
    "resize them, or pad sequences with padding=etl.loading.Padding(), as `etl compare` does for the fields that the "
    "source or data set names in an attribute `ragged`"
)


class FieldError(ValueError):
    """A value does not have the shape of its row in the batch, or has a dtype that the row cannot hold."""


def write_record(
    record: Record, out: Mapping[str, np.ndarray], row: int, *, but: str | None = None, casts: bool = True
) -> None:
    """Write every field of `record` into a row of its array, converted to the array's dtype.

    Parameters
    ----------
    out : mapping of str to array of shape (rows, ...)
        One array for each field, named as `flatten` names them.
    casts : bool
        Convert real numbers to the array's dtype if that is floating, even if digits are lost.

    Raises
    ------
    ValueError
        If a field is missing or is not in `out`, or a tuple has more or fewer arrays than `out` has.
    FieldError
        If a value has another shape than the row, or a dtype that the row cannot hold.
    """
    fields = record
    if type(record) is dict:
        for value in record.values():
            if isinstance(value, tuple):
                fields = flatten(record)
                break
    else:  # another mapping may compute its values when they are asked for
        fields = flatten(record)
    for name, array in out.items():
        if name == but:
            continue
        if name not in fields:
            check_same_places(fields, out)
            raise missing_field(name)
        given = fields[name]
        value = np.asarray(given)
        if value is not given and isinstance(given, np.ndarray):  # of a subclass
            as_array(name, given)
        # numpy would broadcast a smaller value over the row.
        if value.shape != array.shape[1:]:
            check_shape(name, value.shape, array[row, ...])
        if value.dtype != array.dtype and value.size:
            check_dtype(name, value.dtype, array.dtype, casts)
        array[row, ...] = value  # without the ellipsis, an array of objects would hold an array
    if not fields.keys() <= out.keys():
        check_no_more(fields, out)


def as_array(name: str, value: Any) -> np.ndarray:
    """Return a value of the field `name` as an array; raise `FieldError` if it has masked elements."""
    array = np.asarray(value)
    if array is not value and is_masked(value):
        raise FieldError(f"field {name!r} has {MASKED}")
    return array


def missing_field(name: str) -> FieldError:
    """Return the error of a record that lacks a field of the batch."""
    return FieldError(f"it has no field {name!r}, which the records before it have")


def write_value(name: str, value: np.ndarray, out: np.ndarray, casts: bool = True, advice: str = RESIZE) -> None:
    """Write `value` into `out`, converted to the dtype of `out`; raise `FieldError` if it does not fit.

    `casts` is that of `write_record`. `advice` says in the error what to do about another shape.
    """
    check_value(name, value, out, casts, advice)
    out[...] = value


def check_value(name: str, value: np.ndarray, out: np.ndarray, casts: bool, advice: str) -> None:
    """Raise `FieldError` unless `write_value` can write `value` into `out`."""
    check_shape(name, value.shape, out, advice)
    if value.size:  # no digit of an empty array can be lost
        check_dtype(name, value.dtype, out.dtype, casts)


def check_shape(name: str, shape: tuple[int, ...], out: np.ndarray, advice: str = RESIZE) -> None:
    """Raise `FieldError` unless `shape`, of a value, is that of its row `out`."""
    if shape != out.shape:
        raise FieldError(f"field {name!r} has shape {shape}, the records before it {out.shape}; {advice}")


def check_dtype(name: str, stored: np.dtype, batch: np.dtype, casts: bool) -> None:
    """Raise `FieldError` if an array of dtype `batch` cannot hold values of dtype `stored`.

    Real numbers in floating fields are converted to the dtype that the caller asked for, if any. Others must not lose a
    digit.
    """
    # numpy would also convert texts, dates and None, which becomes NaN, and drop the imaginary part of complex numbers.
    is_real = stored.kind in "biu" or is_floating(stored)
    if not ((casts and is_floating(batch) and is_real) or np.can_cast(stored, batch, "safe")):
        raise FieldError(f"field {name!r} is {stored}, the records before it {batch}; use one dtype for all")


def check_no_more(fields: Collection[str], out: Collection[str]) -> None:
    """Raise `ValueError` if `fields`, of a record, has a name that belongs in a batch but is missing in `out`."""
    if any(name not in out for name in batch_fields(fields)):
        check_same_places(fields, out)
        raise ValueError(f"it has fields {', '.join(fields)}, the records before it {', '.join(out)}")
