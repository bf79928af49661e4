"""What follows from the times of two sides, A and B, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from benchmarks.measuring.statistics import signed_rank_interval
from benchmarks.measuring.turns import Pairs

# A change must be larger than this.
DEAD_ZONE = 0.01
# Of the interval of one figure, so that in all 160 of 20 comparisons of commits one in 20 would be off by chance.
CONFIDENCE = 1 - 0.05 / 160

Key = TypeVar("Key", bound=Hashable)


class Verdict(Enum):
    """Of B, compared with A."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    OPEN = "not clear"


@dataclass(frozen=True)
class Judgement:
    """By what factor a figure of B is that of A, the interval around it, and what follows; medians in seconds.

    With `log_ratios`, of every pair, it can be judged again.
    """

    a: float
    b: float
    ratio: float
    low: float
    high: float
    pairs: int
    verdict: Verdict
    log_ratios: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """All but the medians, as JSON values; an end of the interval that has none is None."""
        return {
            "ratio": self.ratio,
            "low": self.low if self.low > 0 else None,
            "high": self.high if math.isfinite(self.high) else None,
            "pairs": self.pairs,
            "verdict": self.verdict.value,
            "log_ratios": self.log_ratios,
        }


def judge_all(
    pairs: Mapping[Key, Pairs], dead_zone: float = DEAD_ZONE, confidence: float = CONFIDENCE
) -> dict[Key, Judgement]:
    """For each figure what follows from its times."""
    return {key: judge(each.log_ratios, *each.medians, dead_zone, confidence) for key, each in pairs.items()}


def judge(
    log_ratios: Sequence[float], a: float, b: float, dead_zone: float = DEAD_ZONE, confidence: float = CONFIDENCE
) -> Judgement:
    """What follows from log(B / A) of pairs of processes: a change where the interval is outside the dead zone, the
    same where it is inside, otherwise nothing.
    """
    low, middle, high = signed_rank_interval(log_ratios, confidence)
    edge = math.log1p(dead_zone)
    if low > edge:
        verdict = Verdict.SLOWER
    elif high < -edge:
        verdict = Verdict.FASTER
    else:
        verdict = Verdict.SAME if -edge <= low and high <= edge else Verdict.OPEN
    return Judgement(a, b, math.exp(middle), math.exp(low), math.exp(high), len(log_ratios), verdict, list(log_ratios))
