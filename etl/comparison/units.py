"""Quantities as people read them: three digits, and the unit that suits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, log10

from etl.measuring.statistics import Interval

NOT_MEASURED = "–"  # noqa: RUF001  an en dash stands for no figure

# (at least so much, in so large a unit, called so): minutes only where there are two of them, as 90 s is read at once.
_TIMES = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (0.0, 1e-6, "µs"))
_BYTES = ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (1e3, 1e3, "kB"), (0.0, 1.0, "B"))


@dataclass(frozen=True)
class Scale:
    """One unit for several quantities, so that they compare at a glance: `size` seconds or bytes are one `unit`."""

    size: float
    unit: str

    def number(self, quantity: float | None) -> str:
        """`quantity`, in seconds or bytes, in this unit and without its name."""
        return NOT_MEASURED if quantity is None else digits(quantity / self.size)

    def mark(self, quantity: float) -> str:
        """`quantity`, in seconds or bytes, as a round figure on an axis."""
        return f"{quantity / self.size:,.10g} {self.unit}" if quantity else "0"

    def text(self, quantity: float | None) -> str:
        """`quantity`, in seconds or bytes, in this unit and with its name."""
        return NOT_MEASURED if quantity is None else f"{self.number(quantity)} {self.unit}"


def time_scale(quantities: Iterable[float | None]) -> Scale:
    """The unit that suits the largest of `quantities`, in seconds."""
    return _best_unit(quantities, _TIMES, Scale(1.0, "s"))


def byte_scale(quantities: Iterable[float | None]) -> Scale:
    """The unit that suits the largest of `quantities`, in bytes; units are decimal."""
    return _best_unit(quantities, _BYTES, Scale(1.0, "B"))


def seconds(quantity: float | None) -> str:
    """A duration with the unit that suits it."""
    return time_scale([quantity]).text(quantity)


def nbytes(quantity: float | None) -> str:
    """An amount of bytes with the unit that suits it."""
    return byte_scale([quantity]).text(quantity)


def digits(number: float | None, significant: int = 3) -> str:
    """`number` with so many significant digits, all of those before the decimal point, and at most three behind it.

    Only what would be 0 then has the one digit behind it that it needs.
    """
    if number is None:
        return NOT_MEASURED
    if number == 0:
        return "0"
    rounded = float(f"{number:.{significant - 1}e}")
    magnitude = floor(log10(abs(rounded)))
    decimals = max(significant - 1 - magnitude, 0)
    return _with_minus(f"{number:,.{max(min(decimals, 3), -magnitude)}f}")


def percent(share: float | None, signed: bool = False) -> str:
    """A share of 1 in percent; `signed` sets a plus before what is above zero."""
    if share is None:
        return NOT_MEASURED
    size = abs(share) * 100
    decimals = 0 if size >= 10 or size == 0 else 1 if size >= 0.1 else 2
    return _with_minus(f"{share * 100:{'+' if signed else ''},.{decimals}f}%")


def ratio(number: float | None) -> str:
    """A ratio with two decimals, and with more where it is small."""
    if number is None:
        return NOT_MEASURED
    return f"{number:,.2f}" if number >= 0.1 else digits(number, 2)


def bounds(interval: Interval | None) -> str:
    """Both ends of the interval of a ratio, `0.50 to 0.55`; nothing without one."""
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"{ratio(interval.low)} to {ratio(interval.high)}"


def _best_unit(quantities: Iterable[float | None], units: tuple[tuple[float, float, str], ...], none: Scale) -> Scale:
    largest = max((abs(each) for each in quantities if each is not None), default=0.0)
    if largest == 0:
        return none
    return next(Scale(size, unit) for least, size, unit in units if largest >= least)


def _with_minus(text: str) -> str:
    return text.replace("-", "−")  # noqa: RUF001  the minus sign is as wide as a digit
