"""Checks of arguments that users pass, and descriptions of them for error messages."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from typing import Any

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|min)?")
UNIT_SECONDS = {None: 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "min": 60.0}
POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def whole_number(name: str, value: Any, least: int, below: int | None = None) -> int:
    """Return `value`, of any integer type but bool, as an int; raise `ValueError` for others, and out of bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least or (below is not None and number >= below):
        upper = "" if below is None else f" and below 2**{below.bit_length() - 1}"
        raise ValueError(f"{name} must be a whole number of at least {least}{upper}, not {value!r}")
    return number


def parse_nbytes(text: str) -> int:
    """Return the number of bytes in a size such as "2GB", "512 MiB" or "65536"; KB is 1,000 and KiB 1,024.

    Raises `ValueError` if the text is not a size, or less than a byte.
    """
    match = SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"a size is a number with B, KB, MB, GB or KiB, MiB, GiB, such as 2GB, not {text!r}")
    nbytes: int = math.floor(float(match[1]) * (1024 if match[3] else 1000) ** POWERS[match[2].upper()])
    if nbytes < 1:
        raise ValueError(f"a size is at least one byte, not {text!r}")
    return nbytes


def parse_seconds(text: str, option: str) -> float:
    """Return the seconds of a time such as "60s", "20ms", "1.5min" or "60".

    Raises `ValueError` that names `option` if `text` is not a time.
    """
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{option} must be a time such as 60s, 20ms or 2min, not {text!r}")
    return float(match[1]) * UNIT_SECONDS[match[2]]


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def refuse_string(name: str, names: Any) -> None:
    """Raise `ValueError` if `names`, a collection of names, is a string: its letters would be the names."""
    if isinstance(names, str):
        raise ValueError(f"{name} is a collection of names, such as [{names!r}]")


def printable(text: str) -> str:
    """Return `text` on one line, with escapes for characters that would control a terminal or reorder its text."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def describe(value: Any) -> str:
    """Return the type of `value`, with the keys of a mapping or the length of a tuple or list."""
    kind = f"a {type(value).__name__}"
    if isinstance(value, Mapping):
        return f"{kind} with {', '.join(map(repr, value)) or 'nothing'}"
    return f"{kind} of {len(value)}" if isinstance(value, (tuple, list)) else kind
