"""Axes: where a figure stands on a chart, and which round figures are marked on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log, log10

# No two marks of a ratio axis stand closer, in percent of its length, so that their figures have room on a phone.
_APART = 14.0
_MOST = 8


@dataclass(frozen=True)
class LinearAxis:
    """From 0 to `end`, which is above 0."""

    end: float

    def position(self, value: float) -> float:
        """Where `value` stands, in percent; figures beyond the ends stand at them."""
        return min(max(value / self.end, 0.0), 1.0) * 100

    def marks(self, size: float = 1.0) -> list[float]:
        """At most five round figures from 0 on; round in a unit of `size`."""
        step = _round_up(self.end / size / 4) * size
        return [step * count for count in range(floor(self.end / step * (1 + 1e-9)) + 1)]


@dataclass(frozen=True)
class RatioAxis:
    """A logarithmic axis: half stands as far from 1 as double."""

    low: float
    high: float

    @classmethod
    def around(cls, ratios: Iterable[float]) -> RatioAxis:
        """The axis that shows all of `ratios`, which are above 0, and 1; with a little room at both ends."""
        shown = [1.0, *ratios]
        room = max((max(shown) / min(shown)) ** 0.05, 1.02)
        return cls(min(shown) / room, max(shown) * room)

    def position(self, ratio: float) -> float:
        """Where `ratio` stands, in percent."""
        return log(ratio / self.low) / log(self.high / self.low) * 100

    def marks(self) -> list[float]:
        """1 and as many other round ratios as have room."""
        for step in (0.01, 0.02, 0.05, 0.1, 0.25):
            counts = range(max(ceil(self.low / step), 1), floor(self.high / step) + 1)
            if len(counts) <= _MOST and self._have_room([step * count for count in counts]):
                return [step * count for count in counts]
        powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        for mantissas in ((1, 2, 5), (1, 3), (1,)):
            marks = [mantissa * 10.0**power for power in powers for mantissa in mantissas]
            marks = [mark for mark in marks if self.low <= mark <= self.high]
            if self._have_room(marks):
                return marks
        return [1.0]

    def _have_room(self, marks: list[float]) -> bool:
        places = [self.position(mark) for mark in marks]
        return any(abs(mark - 1) < 1e-9 for mark in marks) and all(b - a >= _APART for a, b in pairwise(places))


def _round_up(number: float) -> float:
    power = 10.0 ** floor(log10(number))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= number * (1 - 1e-9))
