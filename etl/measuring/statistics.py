"""Intervals of ratios: `ratio_intervals` for all ratios of a table, `ratio_interval` for a single one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import numpy as np

Name = TypeVar("Name", bound=Hashable)
CONFIDENCE = 0.95
# Fewer rounds have no signed-rank interval of 95%: the widest of five covers the centre with 1 - 2 / 2**5 = 94%.
MIN_ROUNDS = 6
# Rounds of a comparison, unless its time is short.
USUAL_ROUNDS = 8
# All choices of signs are looked at up to so many rounds, and as many of those of more rounds.
EXACT_ROUNDS = 12


class Outcome(Enum):
    """The verdict on B from its ratio to A."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    OPEN = "not clear"


@dataclass(frozen=True)
class Interval:
    """An estimate of a ratio, with the interval around it.

    Attributes
    ----------
    estimate : float
        The estimate: of `ratio_interval` that of Hodges and Lehmann, of `ratio_intervals` the ratio of the means.
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

    def outcome(self, margin: float = 0.0) -> Outcome:
        """Return whether B is slower or faster by more than `margin`, the same within it, or neither is shown.

        Parameters
        ----------
        margin : float
            Relative changes up to this count as none.
        """
        if self.low is None or self.high is None:
            return Outcome.OPEN
        if self.low > 1 + margin:
            return Outcome.SLOWER
        if self.high < 1 / (1 + margin):
            return Outcome.FASTER
        is_inside = 1 / (1 + margin) <= self.low and self.high <= 1 + margin
        return Outcome.SAME if is_inside else Outcome.OPEN

    @property
    def excludes_one(self) -> bool:
        """True if the interval shows a difference."""
        return self.outcome() in (Outcome.SLOWER, Outcome.FASTER)


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


def ratio_intervals(walls: Mapping[Name, Mapping[int, float]], reference: Name) -> dict[Name, Interval]:
    """Return the ratio of each arm to one of them, with intervals that hold together.

    The estimate is the ratio of the mean times, so that rates and ratios of a table agree. In each round a ratio
    deviates from it, to first order, by how much either time deviates from its mean. The rounds are independent, and
    their deviations symmetric about 0 if the arms differ by no more than noise. So signs of whole rounds, of all arms
    alike, are flipped at random: that shows how far off the worst of the ratios is, in its own standard errors, in
    19 of 20 tables (single-step max-t: Westfall and Young 1993; Romano and Wolf 2005, doi:10.1198/016214504000000539).
    Arms that share a reference are off together, and flipping whole rounds takes that into account.

    `python -m benchmarks.studies.coverage --simulate` shows in how many tables of equal arms all intervals hold, beside
    intervals for each ratio alone, and those with Bonferroni's correction.

    Parameters
    ----------
    walls : mapping of name to mapping of round to float
        Seconds of each arm, by round. Rounds that an arm lacks are left out.

    Returns
    -------
    The interval of each other arm; without ends if there are fewer than `MIN_ROUNDS` common rounds. Empty if there are
    none.

    Raises
    ------
    ValueError
        If a time is not above 0 and finite.
    """
    rounds = sorted(set.intersection(*(set(each) for each in walls.values())))
    rivals = [each for each in walls if each != reference]
    if not rounds or not rivals:
        return {}
    times = np.array([[walls[each][number] for each in (reference, *rivals)] for number in rounds], np.float64)
    if not (np.isfinite(times) & (times > 0)).all():
        raise ValueError(f"ratios need finite times above 0, not {times.tolist()}")
    means = times.mean(axis=0)
    centres = np.log(means[1:] / means[0])
    deviations = times[:, 1:] / means[1:] - times[:, :1] / means[0]
    count = len(rounds)
    if count < MIN_ROUNDS:
        return {
            each: Interval(math.exp(centre), None, None, count) for each, centre in zip(rivals, centres, strict=True)
        }
    errors = deviations.std(axis=0, ddof=1) / math.sqrt(count)
    half = _worst_deviation(deviations) * errors
    ends = zip(rivals, np.exp(centres), np.exp(centres - half), np.exp(centres + half), strict=True)
    return {each: Interval(float(middle), float(low), float(high), count) for each, middle, low, high in ends}


def _worst_deviation(deviations: np.ndarray) -> float:
    """Return how many standard errors the worst of several means is off with a probability of 1 - `CONFIDENCE`.

    Parameters
    ----------
    deviations : float64 array of shape (rounds, means)
        Deviations from the means.
    """
    count = len(deviations)
    if count <= EXACT_ROUNDS:  # the sign of the first round may stay, since only sizes matter
        flipped = np.array(list(itertools.product((1.0, -1.0), repeat=count - 1)))
    else:
        flipped = np.random.default_rng(0).choice((1.0, -1.0), (2 ** (EXACT_ROUNDS - 1), count - 1))
    signs = np.hstack([np.ones((len(flipped), 1)), flipped])
    means = signs @ deviations / count
    squares = (deviations**2).mean(axis=0)
    spread = np.sqrt(np.maximum(squares - means**2, 0.0) / (count - 1))
    off = np.divide(np.abs(means), spread, out=np.zeros_like(means), where=spread > 0)
    return float(np.quantile(off.max(axis=1), CONFIDENCE, method="higher"))


def _signed_rank_cut(count: int, tail: float) -> int:
    """Return how many pairwise means may be left out at either end.

    That is the largest c for which the sum of the signed ranks is below c with a probability of at most `tail`.
    """
    # ways[s]: how many of the 2 ** count choices of signs give a sum of s.
    ways = [1]
    for rank in range(1, count + 1):
        ways = [positive + negative for positive, negative in zip([0] * rank + ways, ways + [0] * rank, strict=True)]
    return sum(below <= tail * 2**count for below in itertools.accumulate(ways))
