"""Writes records of different lengths into the arrays of one batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from etl.loading.batch_plan import Layout
from etl.loading.lengths import Lengths
from etl.loading.padding import Padding
from etl.sources.record import Record
from etl.stages.collate import check, find_value, store
from etl.stages.fields import MASKS, batch_fields, check_as_many, group_of, mask_of, masked_by

NOTHING = np.array(None)


@dataclass(frozen=True)
class _Part:
    """What becomes of a field: it is padded with `filling`, is the mask of the padded field `masks`, or is as it is."""

    is_padded: bool = False
    filling: Any = None
    masks: str = ""


class Padder:
    """Pads as `padding` says. `ragged` are the fields that the data set says to vary, `lengths` what it says of their
    steps, None where it says nothing. Generated masks have `dtype`.
    """

    def __init__(self, padding: Padding, ragged: Collection[str], lengths: Lengths | None, dtype: np.dtype) -> None:
        self._padding = padding
        self._ragged = frozenset(ragged)
        self._lengths = lengths
        self._dtype = dtype
        # Looked at once, as records are many and the names and dtypes of a data set's batches the same.
        self._parts: dict[str, _Part] = {}

    def lay_out(self, record: Layout, steps: Mapping[str, int]) -> Layout:
        """The layout of a batch with so many steps of each padded field, before rounding; `record` is that of one."""
        layout = dict(record)
        for name in self._padded(record):
            (_, *rest), dtype = record[name]
            size = self._padding.steps(steps[name])
            layout[name] = ((size, *rest), dtype)
            (_, *rest), dtype = record.get(mask_of(name), ((0,), self._dtype))
            layout[mask_of(name)] = ((size, *rest), dtype)
        return {name: layout[name] for name in batch_fields(layout)}

    def check(self, record: Layout) -> None:
        """Raise `ValueError` where records of that layout cannot be padded."""
        for name in self._padded(record):
            self._padding.filling(name, record[name][1])
            masks = MASKS[group_of(name)]
            if masks in record and masks != mask_of(name):
                raise ValueError(
                    f"it has one {masks!r} for a tuple; give a tuple of masks, with None where there is none"
                )

    def longest(self, record: Layout, numbers: np.ndarray) -> dict[str, int] | None:
        """The most steps of the records `numbers`, by padded field; None where they must be loaded to know that."""
        padded = self._padded(record)
        if self._padding.length is not None:
            return dict.fromkeys(padded, 0)
        longest = {}
        for name in padded:
            lengths = None if self._lengths is None else self._lengths.of(name)
            if lengths is None:
                return None
            longest[name] = int(lengths[numbers].max())
        return longest

    def longest_of(self, record: Layout, finished: Iterable[Record]) -> dict[str, int]:
        """The most steps of the flat records `finished`, by padded field."""
        return {
            name: max((len(each[name]) for each in finished if name in each and np.ndim(each[name])), default=0)
            for name in self._padded(record)
        }

    def write(self, fields: Record, slots: Mapping[str, np.ndarray], number: int) -> None:
        """Write the flat record `fields`, number `number`, into `slots`, and the padding after it.

        Raises `ValueError` for one that does not fit.
        """
        for name, slot in slots.items():
            part = self._parts.get(name)
            if part is None:
                part = self._parts[name] = self._part(name, slots)
            if part.masks:
                self._write_mask(fields, name, slot, len(fields[part.masks]))
                continue
            if name not in fields:
                check_as_many(fields, slots)
            if part.is_padded:
                self._write_padded(fields, name, slot, number, part.filling)
            else:
                store(name, find_value(fields, name), slot)

    def _part(self, name: str, slots: Mapping[str, np.ndarray]) -> _Part:
        field = masked_by(name)
        if field not in slots or slots[field].ndim == 0 or not self._pads(field):
            return _Part()
        return _Part(masks=field) if field != name else _Part(True, self._padding.filling(name, slots[name].dtype))

    def _write_padded(self, fields: Record, name: str, slot: np.ndarray, number: int, filling: Any) -> None:
        value = np.asarray(fields[name]) if name in fields else NOTHING
        steps = len(value) if value.ndim else 0
        if steps <= len(slot):
            # Before the length: whether it is there at all, and has the axes of the others.
            check(name, find_value(fields, name), slot[:steps])
        self._check_length(name, steps, number)
        if steps > len(slot):
            # Lengths are known, or found by the very same stages, unless one length was asked for.
            do = "raise that length" if self._padding.length else "its stages do not give the same each time; seed them"
            raise ValueError(f"field {name!r} has {steps} steps and is padded to {len(slot)}; {do}")
        slot[:steps] = value
        slot[steps:] = filling

    def _write_mask(self, fields: Record, name: str, slot: np.ndarray, steps: int) -> None:
        if name not in fields:
            slot[:steps] = 1
        else:
            if len(fields[name]) != steps:
                raise ValueError(f"field {name!r} has {len(fields[name])} steps, what it masks {steps}")
            store(name, find_value(fields, name), slot[:steps])
        slot[steps:] = 0

    def _check_length(self, name: str, steps: int, number: int) -> None:
        lengths = None if self._lengths is None else self._lengths.of(name)
        if self._lengths is not None and lengths is not None and lengths[number] != steps:
            raise ValueError(
                f"field {name!r} has {steps} steps and {self._lengths.told_by} say {lengths[number]}; "
                "a stage that changes that needs an attribute changes_length = True"
            )

    def _padded(self, record: Layout) -> list[str]:
        return [name for name, (shape, _) in record.items() if shape and self._pads(name)]

    def _pads(self, name: str) -> bool:
        return group_of(name) in MASKS and self._padding.pads(name, self._ragged)
