"""Padding: sequences of different lengths in one batch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from etl.arguments import refuse_string, whole_number
from etl.stages.dtypes import is_floating
from etl.stages.fields import MASKS
from presave.schema import group_of


@dataclass(frozen=True)
class Padding:
    """Pads records to the length of the longest in their batch, along the first axis, which counts steps.

    Batches get masks: 1 for data, 0 for padding. If records have a mask of their own, it is padded with 0.

    Parameters
    ----------
    value : float
        The padding value of features.
    multiple_of : int
        Round the length of a batch up to a multiple of this.
    length : int, optional
        Pad every batch to this length. A longer record is an error.
    label_value : float
        The padding value of labels.
    fields : collection of str, optional
        Fields to pad: "features" for all inputs that have an axis, "features.1" for the second of several inputs,
        "label" for a label that has steps. By default "features", and "label" if the source or store marks it as
        `ragged`.

    Raises
    ------
    ValueError
        If a number is too small, both `length` and `multiple_of` are given, or a field cannot be padded.

    Examples
    --------
    >>> records = [{"features": np.ones(steps, np.float32), "label": 0} for steps in (1, 3)]
    >>> batch = next(iter(etl.RawIterator(records, padding=etl.loading.Padding(value=-1.0))))
    >>> batch.features
    array([[ 1., -1., -1.],
           [ 1.,  1.,  1.]], dtype=float32)
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
        refuse_string("fields", self.fields)
        for name in self.fields or ():
            if group_of(name) not in MASKS:
                raise ValueError(
                    f"fields has {name!r}; only 'features' and 'label' can be padded, or one of several: 'label.0'"
                )

    def steps(self, longest: int) -> int:
        """Return the length of a batch whose longest record has `longest` steps.

        It is at least 1, for models that need a step.
        """
        if self.length is not None:
            return self.length
        return max(1, -(-longest // self.multiple_of)) * self.multiple_of

    def pads(self, name: str, ragged: Collection[str]) -> bool:
        """Return whether the field `name` is padded, provided that it has an axis.

        `ragged` are the fields whose size varies.
        """
        group = group_of(name)
        if self.fields is not None:
            return name in self.fields or group in self.fields
        return group == "features" or (group == "label" and (name in ragged or group in ragged))

    def filling(self, name: str, dtype: np.dtype) -> Any:
        """Return the padding value of the field `name`; raises `ValueError` if `dtype` cannot hold it."""
        group = group_of(name)
        if group in MASKS.values():
            return dtype.type(0)
        value = self.label_value if group == "label" else self.value
        with np.errstate(all="ignore"):
            filling = np.array(value).astype(dtype)[()]
        fits = np.isfinite(filling) or not np.isfinite(value) if is_floating(dtype) else filling == value
        if not fits:
            raise ValueError(f"field {name!r} is {dtype}, which cannot hold the padding value {value}")
        return filling
