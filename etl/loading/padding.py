"""Sequences of different lengths in one batch: how long it is made, and what stands after their ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from etl.arguments import whole_number
from etl.stages.dtypes import is_floating
from etl.stages.fields import MASKS, group_of


@dataclass(frozen=True)
class Padding:
    """Fields whose first axis counts steps are filled up with `value` (`label_value` for labels) to the longest of the
    batch, rounded up to a multiple of `multiple_of`; or to `length` steps in every batch, and then a longer record is
    an error. Batches get masks, 1 for data and 0 for padding; a mask that a record brings is filled up with 0.

    `fields` names those that are padded: "features" for all inputs that have an axis, "features.1" for the second of
    several, "label" for labels of each step. None is "features", and "label" where the source or store says that it
    varies (`ragged`). Raises `ValueError` for numbers that make no sense.
    """

    value: float = 0.0
    multiple_of: int = 1
    length: int | None = None
    label_value: float = 0.0
    fields: Collection[str] | None = None

    def __post_init__(self) -> None:
        whole_number("multiple_of", self.multiple_of, least=1)
        if self.length is not None:
            whole_number("length", self.length, least=1)
            if self.multiple_of != 1:
                raise ValueError(f"length={self.length} and multiple_of={self.multiple_of}: give one of them")
        if isinstance(self.fields, str):
            raise ValueError(f"fields is a collection of names, such as [{self.fields!r}]")
        for name in self.fields or ():
            if group_of(name) not in MASKS:
                raise ValueError(
                    f"fields has {name!r}; padded are 'features' and 'label', or one of several: 'label.0'"
                )

    def steps(self, longest: int) -> int:
        """The steps of a batch whose longest record has so many; at least 1, for models that need a step."""
        if self.length is not None:
            return self.length
        return max(1, -(-longest // self.multiple_of)) * self.multiple_of

    def pads(self, name: str, ragged: Collection[str]) -> bool:
        """Whether the field `name` is padded, if it has an axis and `ragged` is what the data set says that varies."""
        group = group_of(name)
        if self.fields is not None:
            return name in self.fields or group in self.fields
        return group == "features" or (group == "label" and (name in ragged or group in ragged))

    def filling(self, name: str, dtype: np.dtype) -> Any:
        """What fills up the field `name` of `dtype`; raises `ValueError` where that cannot hold it."""
        group = group_of(name)
        if group in MASKS.values():
            return dtype.type(0)
        value = self.label_value if group == "label" else self.value
        with np.errstate(all="ignore"):
            filling = np.array(value).astype(dtype)[()]
        if not (is_floating(dtype) or filling == value):
            raise ValueError(f"field {name!r} is {dtype}, which cannot hold the padding value {value}")
        return filling
