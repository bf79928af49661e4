"""A verdict on two arms, A and B: slower, faster, the same or unclear, from the times of pairs of processes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.measuring.statistics import Interval, Outcome, ratio_interval
from benchmarks.measuring.turn_rounds import Pairs

# A change must be larger than this.
EQUIVALENCE_MARGIN = 0.01
# Confidence of one metric's interval. 20 comparisons of commits have 160 intervals together. By chance, one such set in
# 20 has a wrong interval.
CONFIDENCE = 1 - 0.05 / 160

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Verdict:
    """The change of one metric from A to B.

    Attributes
    ----------
    a, b : float
        Medians, in seconds.
    change : Interval
        B over A, of all pairs of processes.
    log_ratios : list of float
        log(B / A) of every pair, from which the verdict can be recomputed.
    """

    a: float
    b: float
    change: Interval
    outcome: Outcome
    log_ratios: list[float] = field(default_factory=list)


def judge_all(
    pairs: Mapping[Key, Pairs], equivalence_margin: float = EQUIVALENCE_MARGIN, confidence: float = CONFIDENCE
) -> dict[Key, Verdict]:
    """Return a verdict on each metric, see `judge`."""
    return {key: judge(each.log_ratios, *each.medians, equivalence_margin, confidence) for key, each in pairs.items()}


def judge(
    log_ratios: Sequence[float],
    a: float,
    b: float,
    equivalence_margin: float = EQUIVALENCE_MARGIN,
    confidence: float = CONFIDENCE,
) -> Verdict:
    """Return the verdict on one metric, whose medians are `a` and `b`.

    The metric has changed if the whole interval is outside the equivalence margin, is the same if all of it is inside,
    and is otherwise not clear.
    """
    change = ratio_interval([math.exp(each) for each in log_ratios], confidence)
    return Verdict(a, b, change, change.outcome(equivalence_margin), list(log_ratios))
