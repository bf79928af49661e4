"""Checking counts that callers give."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(name: str, value: Any, least: int, below: int | None = None) -> int:
    """`value`, of any integer type but bool, as an int; raises `ValueError` naming `name` where it is out of bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least or (below is not None and number >= below):
        upper = "" if below is None else f" and below 2**{below.bit_length() - 1}"
        raise ValueError(f"{name} must be a whole number of at least {least}{upper}, not {value!r}")
    return number
