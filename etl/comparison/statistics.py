"""Ratios paired within rounds, and how sure they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from etl.comparison.report import Interval

# Of fewer, the widest interval that resampling can give, from the lowest to the highest, holds the median of all rounds
# that there could have been with less than 90%: 1 - 2 * 0.5**n.
FEWEST_ROUNDS = 5
RESAMPLES = 10_000
CONFIDENCE = 0.95


def paired_ratios(above: Mapping[int, float], below: Mapping[int, float]) -> list[float]:
    """`above` over `below` in each round, by number, that both were measured in."""
    return [above[number] / below[number] for number in sorted(above.keys() & below.keys())]


def interval(values: Sequence[float]) -> Interval:
    """The median and its 95% percentile bootstrap interval (Efron and Tibshirani, An Introduction to the Bootstrap,
    1993, chapter 13), on a logarithmic scale, in which a ratio and its inverse are alike.

    Raises `ValueError` where there is no value, or one that is not above 0.
    """
    logarithms = np.log(np.asarray(values, np.float64))
    if not len(logarithms) or not np.isfinite(logarithms).all():
        raise ValueError(f"an interval needs values above 0, not {list(values)}")
    median = float(np.exp(np.median(logarithms)))
    if len(logarithms) < FEWEST_ROUNDS:
        return Interval(median, None, None, len(logarithms))
    drawn = np.random.default_rng(0).choice(logarithms, (RESAMPLES, len(logarithms)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.exp(np.quantile(np.median(drawn, axis=1), [tail, 1 - tail]))
    return Interval(median, float(low), float(high), len(logarithms))


def verdict(ratio: Interval) -> str:
    """What a ratio of wall times says of the strategy above the line."""
    if ratio.low is None or ratio.high is None:
        return "too few rounds"
    if ratio.low <= 1 <= ratio.high:
        return "no difference shown"
    return "faster" if ratio.high < 1 else "slower"


def width(ratio: Interval | None) -> float:
    """How wide the interval is, as a factor from its low end to its high end; infinite where there is none."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return float("inf")
    return ratio.high / ratio.low


def central_mean(values: Sequence[float], by: Sequence[float]) -> float:
    """The mean of the `values` of those rounds whose `by` lies in the middle half.

    Robust as a median is, and yet the sum of the parts' means is the mean of the sum.
    """
    cut = len(by) // 4
    order = np.argsort(np.asarray(by), kind="stable")[cut : len(by) - cut]
    return float(np.mean(np.asarray(values, np.float64)[order]))
