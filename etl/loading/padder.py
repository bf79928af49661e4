"""Writes records of different lengths into the arrays of one batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etl.loading.batch_plan import Fields
from etl.loading.lengths import Lengths
from etl.loading.padding import Padding
from etl.stages.collate import as_array, check_no_more, check_value, missing_field, write_value
from etl.stages.fields import MASKS, batch_fields, check_same_places, mask_of, masked_by
from presave import Record
from presave.schema import group_of

# What to do about other shapes of a field that is padded, and of one that is not.
PADDED = "padding fills up the first axis alone: make the others alike, or put the axis that varies first"
NOT_PADDED = "resize them, or, if the first axis varies, name the field in Padding(fields=[...])"


@dataclass(frozen=True)
class _Role:
    """The role of a field: it is padded with `filling`, it masks the padded field `masks`, or neither."""

    is_padded: bool = False
    filling: Any = None
    masks: str = ""


class Padder:
    """Pads the fields of a batch and writes their masks.

    Parameters
    ----------
    lengths : Lengths or None
        Steps of every record, if the data set has them.
    dtype : numpy dtype or None
        The dtype of floating fields, and of a mask if records have none of their own. None for the records' own dtypes,
        and float32 for a mask.
    """

    def __init__(
        self, padding: Padding, ragged: Collection[str], lengths: Lengths | None, dtype: np.dtype | None
    ) -> None:
        self._padding = padding
        self._ragged = frozenset(ragged)
        self._lengths = lengths
        self._casts = dtype is not None
        self._mask_dtype = np.dtype(np.float32) if dtype is None else dtype
        # Found once: all batches of a data set have the same names and dtypes.
        self._roles: dict[str, _Role] = {}

    def plan(self, record: Fields, steps: Mapping[str, int]) -> Fields:
        """Return the fields of a batch, masks included.

        `record` are the fields of one record. `steps` has the steps of the longest record, by padded field;
        `Padding.steps` makes the batch's length of it.
        """
        fields = dict(record)
        for name in self._padded(record):
            (_, *rest), dtype = record[name]
            size = self._padding.steps(steps[name])
            fields[name] = ((size, *rest), dtype)
            (_, *rest), dtype = record.get(mask_of(name), ((0,), self._mask_dtype))
            fields[mask_of(name)] = ((size, *rest), dtype)
        return {name: fields[name] for name in batch_fields(fields)}

    def check(self, record: Fields) -> None:
        """Raise `ValueError` if records with these fields cannot be padded."""
        for name in self._padded(record):
            self._padding.filling(name, record[name][1])
            masks = MASKS[group_of(name)]
            if masks in record and masks != mask_of(name):
                raise ValueError(
                    f"it has one {masks!r} for a tuple; give a tuple of masks, with None where there is none"
                )

    def longest(self, record: Fields, indices: NDArray[np.int64]) -> dict[str, int] | None:
        """Return the steps of the longest of the records `indices`, by padded field.

        None if they are unknown until the records are loaded.
        """
        padded = self._padded(record)
        if self._padding.length is not None:
            return dict.fromkeys(padded, 0)
        longest = {}
        for name in padded:
            lengths = None if self._lengths is None else self._lengths.of(name)
            if lengths is None:
                return None
            longest[name] = int(lengths[indices].max())
        return longest

    def longest_of(self, record: Fields, finished: Iterable[Record]) -> dict[str, int]:
        """Return the steps of the longest of the flat records `finished`, by padded field."""
        return {
            name: max((len(each[name]) for each in finished if name in each and np.ndim(each[name])), default=0)
            for name in self._padded(record)
        }

    def write(self, fields: Record, out: Mapping[str, np.ndarray], row: int, index: int) -> None:
        """Write a record, its padding and its masks into one row of a batch.

        Parameters
        ----------
        fields : mapping of str to array
            The record after the pipeline, with flat fields.
        out : mapping of str to array of shape (rows, ...)
            One array for each field and mask.
        row : int
            The row to write.
        index : int
            The record's index in the data set, to look up its length.

        Raises
        ------
        ValueError
            If a field or a mask does not fit, or its length differs from the one that the data set gives.
        """
        for name, array in out.items():
            role = self._roles.get(name)
            if role is None:
                role = self._roles[name] = self._find_role(name, out)
            if role.masks:
                self._write_mask(fields, name, array[row], len(fields[role.masks]))
                continue
            if name not in fields:
                check_same_places(fields, out)
            if role.is_padded:
                self._write_padded(fields, name, array[row], index, role.filling)
            else:
                write_value(name, _find(fields, name), array[row, ...], self._casts, NOT_PADDED)
        if not fields.keys() <= out.keys():
            check_no_more(fields, out)

    def _find_role(self, name: str, out: Mapping[str, np.ndarray]) -> _Role:
        field = masked_by(name)
        if field not in out or out[field].ndim == 1 or not self._pads(field):
            return _Role()
        return _Role(masks=field) if field != name else _Role(True, self._padding.filling(name, out[name].dtype))

    def _write_padded(self, fields: Record, name: str, out: np.ndarray, index: int, filling: Any) -> None:
        value = _find(fields, name)
        steps = len(value) if value.ndim else 0
        if steps <= len(out):
            # Before its length: it must have the other axes of the batch.
            check_value(name, value, out[:steps], self._casts, PADDED)
        self._check_length(name, steps, index)
        if steps > len(out):
            # Unless one length was asked for, the batch is as long as its longest record: as the data set says, which
            # was just checked, or as the same stages gave when the batch was planned.
            do = "raise that length" if self._padding.length else "its stages give other lengths each time; seed them"
            raise ValueError(f"field {name!r} has {steps} steps and is padded to {len(out)}; {do}")
        out[:steps] = value
        out[steps:] = filling

    def _write_mask(self, fields: Record, name: str, out: np.ndarray, steps: int) -> None:
        if name not in fields:
            out[:steps] = 1
        else:
            if len(fields[name]) != steps:
                raise ValueError(f"field {name!r} has {len(fields[name])} steps, the field that it masks has {steps}")
            write_value(name, _find(fields, name), out[:steps], self._casts, PADDED)
        out[steps:] = 0

    def _check_length(self, name: str, steps: int, index: int) -> None:
        lengths = None if self._lengths is None else self._lengths.of(name)
        if self._lengths is not None and lengths is not None and lengths[index] != steps:
            raise ValueError(
                f"field {name!r} has {steps} steps and {self._lengths.origin} say {lengths[index]}; "
                "a stage that changes lengths needs an attribute changes_length = True"
            )

    def _padded(self, record: Fields) -> list[str]:
        return [name for name, (shape, _) in record.items() if shape and self._pads(name)]

    def _pads(self, name: str) -> bool:
        return group_of(name) in MASKS and self._padding.pads(name, self._ragged)


def _find(fields: Record, name: str) -> np.ndarray:
    if name not in fields:
        raise missing_field(name)
    return as_array(name, fields[name])
