"""A verdict on two arms, A and B: slower, faster, the same or unclear, from the times of pairs of processes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from benchmarks.measuring.statistics import Interval, Outcome, signed_rank_interval
from benchmarks.measuring.turns import Pairs
from benchmarks.measuring.values import JsonValues

# A change must be larger than this.
EQUIVALENCE_MARGIN = 0.01
# Confidence of one metric's interval. 20 comparisons of commits have 160 intervals together. By chance, one such set in
# 20 has a wrong interval.
CONFIDENCE = 1 - 0.05 / 160

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Verdict(JsonValues):
    """The change of one metric from A to B.

    Attributes
    ----------
    a, b : float
        Medians, in seconds.
    ratio, low, high : float
        B over A, and the ends of its interval; 0 and infinity if there are too few pairs for an interval.
    pairs : int
        Pairs of processes.
    outcome : Outcome
        The conclusion.
    log_ratios : list of float
        log(B / A) of every pair, from which the verdict can be recomputed.
    """

    a: float
    b: float
    ratio: float
    low: float
    high: float
    pairs: int
    outcome: Outcome
    log_ratios: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return all but the medians, as JSON values; a missing end of the interval is None."""
        return {
            "ratio": self.ratio,
            "low": self.low if self.low > 0 else None,
            "high": self.high if math.isfinite(self.high) else None,
            "pairs": self.pairs,
            "verdict": self.outcome.value,
            "log_ratios": self.log_ratios,
        }


def judge_all(
    pairs: Mapping[Key, Pairs], equivalence_margin: float = EQUIVALENCE_MARGIN, confidence: float = CONFIDENCE
) -> dict[Key, Verdict]:
    """Return a verdict on each metric.

    Parameters
    ----------
    equivalence_margin, confidence : float
        As `judge` takes them.
    """
    return {key: judge(each.log_ratios, *each.medians, equivalence_margin, confidence) for key, each in pairs.items()}


def judge(
    log_ratios: Sequence[float],
    a: float,
    b: float,
    equivalence_margin: float = EQUIVALENCE_MARGIN,
    confidence: float = CONFIDENCE,
) -> Verdict:
    """Return the verdict on one metric.

    The metric has changed if the whole interval is outside the equivalence margin, is the same if all of it is inside,
    and is otherwise not clear.

    Parameters
    ----------
    a, b : float
        Medians, in seconds.
    """
    low, middle, high = signed_rank_interval(log_ratios, confidence)
    ratio, low, high = math.exp(middle), math.exp(low), math.exp(high)
    outcome = Interval(ratio, low, high, len(log_ratios)).outcome(equivalence_margin)
    return Verdict(a, b, ratio, low, high, len(log_ratios), outcome, list(log_ratios))
