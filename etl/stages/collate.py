"""Storing a value of a record in its place in a batch."""

from __future__ import annotations

import numpy as np

from etl.sources.record import Record
from etl.stages.dtypes import is_floating


class SlotError(ValueError):
    """A value that is not of the shape of its slot, or of a dtype whose values the slot cannot hold."""


def check_shape(name: str, shape: tuple[int, ...], slot: np.ndarray) -> None:
    """Raise `SlotError` unless a value of `shape` fills `slot`: numpy would broadcast a smaller one over it."""
    if shape != slot.shape:
        raise SlotError(
            f"field {name!r} has shape {shape}, the records before it {slot.shape}; resize them, or pad "
            "sequences with padding=etl.Padding()"
        )


def find_value(fields: Record, name: str) -> np.ndarray:
    """The field `name` as an array; raises `SlotError` where the record has none."""
    if name not in fields:
        raise SlotError(f"it has no field {name!r}, which the records before it have")
    return np.asarray(fields[name])


def store(name: str, value: np.ndarray, slot: np.ndarray) -> None:
    """Write `value` into `slot`, converted to its dtype; raises `SlotError`."""
    check(name, value, slot)
    slot[...] = value


def check(name: str, value: np.ndarray, slot: np.ndarray) -> None:
    """Raise `SlotError` unless `store` can write `value` into `slot`."""
    check_shape(name, value.shape, slot)
    # Features are converted to the floating dtype that was asked for; anything else must not lose a digit.
    if not (is_floating(slot.dtype) or np.can_cast(value.dtype, slot.dtype, "safe")):
        raise SlotError(f"field {name!r} is {value.dtype}, the records before it {slot.dtype}; use one dtype for all")
