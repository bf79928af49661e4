"""Intervals of ratios: the same method for every comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
# Fewer rounds have no signed-rank interval of 95%: the widest of five covers the centre with 1 - 2 / 2**5 = 94%.
MIN_ROUNDS = 6


@dataclass(frozen=True)
class Interval:
    """An estimate of a ratio, with the interval around it.

    Attributes
    ----------
    estimate : float
        The Hodges-Lehmann estimate: the geometric counterpart of the median of all pairwise means.
    low, high : float or None
        The ends of the interval; None if there are too few values for the confidence.
    count : int
        Independent values behind it.
    """

    estimate: float
    low: float | None
    high: float | None
    count: int

    @property
    def width(self) -> float:
        """The factor from the low end to the high end; infinite if there is no interval."""
        return math.inf if self.low is None or self.high is None else self.high / self.low

    @property
    def excludes_one(self) -> bool:
        """True if the interval shows a difference."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def ratio_interval(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of a ratio from paired ratios, one for each independent round.

    It is computed on logarithms, so that a ratio and its inverse have inverse intervals.

    Raises
    ------
    ValueError
        If there are no ratios, or one is not above 0 and finite.
    """
    values = np.asarray(ratios, np.float64)
    if not len(values) or not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"an interval needs finite ratios above 0, not {list(ratios)}")
    low, estimate, high = signed_rank_interval(np.log(values).tolist(), confidence)
    if math.isinf(low):
        return Interval(math.exp(estimate), None, None, len(values))
    return Interval(math.exp(estimate), math.exp(low), math.exp(high), len(values))


def signed_rank_interval(values: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """Return an interval for the centre of `values`: its low end, the estimate of the centre, and its high end.

    The estimate is that of Hodges and Lehmann: the median of the means of all pairs, including each value with itself.
    The interval inverts Wilcoxon's signed-rank test with its exact distribution (Hodges and Lehmann 1963,
    doi:10.1214/aoms/1177704172). It assumes that the values are independent and symmetric about their centre, and
    nothing else about their distribution; up to three in ten may be outliers. The bootstrap, which it replaces, gave
    intervals that were too narrow for few rounds.

    Parameters
    ----------
    values : sequence of float
        At least one.
    confidence : float
        Between 0 and 1. The ends are infinite if there are too few values for it.
    """
    array = np.asarray(values, np.float64)
    rows, columns = np.triu_indices(len(array))
    means = np.sort((array[rows] + array[columns]) / 2)
    estimate = float(np.median(means))
    cut = _signed_rank_cut(len(array), (1 - confidence) / 2)
    if cut == 0:
        return -math.inf, estimate, math.inf
    return float(means[cut - 1]), estimate, float(means[-cut])


def paired_ratios(above: Mapping[int, float], below: Mapping[int, float]) -> list[float]:
    """Return `above / below` for each round in which both were measured; the keys are the numbers of the rounds."""
    return [above[number] / below[number] for number in sorted(above.keys() & below.keys())]


def central_mean(values: Sequence[float], by: Sequence[float]) -> float:
    """Return the mean of the `values` whose `by` is in the middle half.

    It is as robust as a median. Unlike medians, the central means of parts add up to the central mean of their sum.
    """
    cut = len(by) // 4
    order = np.argsort(np.asarray(by), kind="stable")[cut : len(by) - cut]
    return float(np.mean(np.asarray(values, np.float64)[order]))


def _signed_rank_cut(count: int, tail: float) -> int:
    """Return how many pairwise means may be left out at either end.

    That is the largest c for which the sum of the signed ranks is below c with a probability of at most `tail`.
    """
    # ways[s]: how many of the 2 ** count choices of signs give a sum of s.
    ways = [1]
    for rank in range(1, count + 1):
        longer = ways + [0] * rank
        for total, number in enumerate(ways):
            longer[total + rank] += number
        ways = longer
    allowed, below, cut = tail * 2**count, 0, 0
    for number in ways:
        below += number
        if below > allowed:
            break
        cut += 1
    return cut
