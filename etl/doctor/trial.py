"""Whether a remedy helps: some batches with only that applied, in turns with as many without. Loads torch."""

from __future__ import annotations

import math

from etl.doctor.finding import Trial
from etl.doctor.setup import Setup
from etl.doctor.steps import time_steps
from etl.measuring.statistics import CONFIDENCE, signed_rank_interval

# Each turn of one is beside one of the other; a steady drift cancels.
TURNS = (0, 1, 1, 0) * 3
PAIRS = len(TURNS) // 2
# A turn takes about so long, and has so many batches at least.
TURN_SECONDS, LEAST_BATCHES = 0.5, 3


def try_remedy(setup: Setup, changed: Setup, records: int) -> Trial:
    """Train in both set-ups in turns; seconds of a batch of so many `records`. Raises whatever training does."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in TURNS:
        times, _ = time_steps((setup, changed)[turn], LEAST_BATCHES, seconds=TURN_SECONDS)
        seconds[turn].append(times.seconds_per_record * records)
    log_ratios = [math.log(after / before) for before, after in zip(*seconds, strict=True)]
    low, ratio, high = map(math.exp, signed_rank_interval(log_ratios, CONFIDENCE))
    middle = sorted(seconds[0])[PAIRS // 2]
    return Trial(middle, middle * ratio, ratio, low, high)
