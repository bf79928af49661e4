"""Quantities and settings for people: three significant digits and a suitable unit, names and values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor, log10
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etl.measuring.statistics import Interval

NOT_MEASURED = "–"  # noqa: RUF001  an en dash, for a missing value

# (smallest quantity, size of the unit, its name). Minutes begin at two: 90 s is easier to read than 1.5 min.
_TIMES = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (0.0, 1e-6, "µs"))
_BYTES = ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (1e3, 1e3, "kB"), (0.0, 1.0, "B"))


@dataclass(frozen=True)
class Scale:
    """A common unit, of `size` seconds or bytes, for several quantities, so that they compare at a glance."""

    size: float
    unit: str

    def number(self, quantity: float | None) -> str:
        """Return `quantity` (seconds or bytes) in this unit, without the unit's name."""
        return NOT_MEASURED if quantity is None else digits(quantity / self.size)

    def mark(self, quantity: float) -> str:
        """Return `quantity` (seconds or bytes) as a round number on an axis."""
        return f"{quantity / self.size:,.10g} {self.unit}" if quantity else "0"

    def text(self, quantity: float | None) -> str:
        """Return `quantity` (seconds or bytes) in this unit, with the unit's name."""
        return NOT_MEASURED if quantity is None else f"{self.number(quantity)} {self.unit}"


def time_scale(quantities: Iterable[float | None]) -> Scale:
    """Return the time unit that suits the largest of `quantities` (seconds)."""
    return _best_unit(quantities, _TIMES)


def byte_scale(quantities: Iterable[float | None]) -> Scale:
    """Return the decimal unit that suits the largest of `quantities` (bytes)."""
    return _best_unit(quantities, _BYTES)


def seconds(quantity: float | None) -> str:
    """Return a duration with a suitable unit."""
    return time_scale([quantity]).text(quantity)


def nbytes(quantity: float | None) -> str:
    """Return a number of bytes with a suitable unit."""
    return byte_scale([quantity]).text(quantity)


def digits(number: float | None, significant: int = 3) -> str:
    """Return `number` with `significant` digits; but all digits of its integer part, and at most three decimals.

    A small number that three decimals would show as 0 keeps its first significant digit.
    """
    if number is None:
        return NOT_MEASURED
    if number == 0:
        return "0"
    rounded = float(f"{number:.{significant - 1}e}")
    magnitude = floor(log10(abs(rounded)))
    decimals = max(significant - 1 - magnitude, 0)
    return _with_minus(f"{number:,.{max(min(decimals, 3), -magnitude)}f}")


def percent(share: float | None) -> str:
    """Return a share of 1 in percent."""
    if share is None:
        return NOT_MEASURED
    size = abs(share) * 100
    decimals = 0 if size >= 10 or size == 0 else 1 if size >= 0.1 else 2
    return _with_minus(f"{share * 100:,.{decimals}f}%")


def ratio(number: float | None) -> str:
    """Return a ratio with two decimals, or more if it is small."""
    if number is None:
        return NOT_MEASURED
    return f"{number:,.2f}" if number >= 0.1 else digits(number, 2)


def counted(number: int, one: str, several: str) -> str:
    """Return `number` with the words for one or for several, such as "1 batch" or "1,200 batches"."""
    return f"{number:,} {one if number == 1 else several}"


def bounds(interval: Interval | None) -> str:
    """Return both ends of the interval of a ratio, such as "0.50 to 0.55"; empty without an interval."""
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"{ratio(interval.low)} to {ratio(interval.high)}"


def _best_unit(quantities: Iterable[float | None], units: tuple[tuple[float, float, str], ...]) -> Scale:
    # Nothing, or zero, is in seconds or bytes.
    largest = max((abs(each) for each in quantities if each is not None), default=0.0) or 1.0
    return next(Scale(size, unit) for least, size, unit in units if largest >= least)


def _with_minus(text: str) -> str:
    return text.replace("-", "−")  # noqa: RUF001  the minus sign is as wide as a digit


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as they are set, such as "num_workers=2 and persistent_workers"; a name alone is True."""
    phrases = [_phrase(name, value) for name, value in settings.items()]
    if len(phrases) < 2:
        return "".join(phrases)
    return f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def _phrase(name: str, value: Any) -> str:
    if value is True:
        return name
    # In quotes, other text cannot be mistaken for further settings.
    is_plain = not isinstance(value, str) or re.fullmatch(r"[\w.:/+-]+", value)
    return f"{name}={value if is_plain else repr(value)}"
