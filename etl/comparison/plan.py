"""How many records to measure, so that enough rounds have room in the time that is left."""

from __future__ import annotations

from bisect import bisect_right

from etl.comparison.amounts import (
    CHECKED_STEPS,
    FEWEST_STEPS,
    TIMELINE_BATCHES,
    WARM_UP_BATCHES,
    compute_seconds,
)
from etl.comparison.prediction import slowdowns, stage_seconds
from etl.comparison.rounds import FEWEST_WITHOUT_CLAIM, ROUNDS_WITH_ETL_ALONE
from etl.comparison.samples import Profile
from etl.comparison.workload import Workload
from etl.measuring.statistics import MIN_ROUNDS

# The first batch has the start-up in it; the others tell what a batch takes.
FEWEST_BATCHES = 5
ROUNDS_WANTED = MIN_ROUNDS
# A process to fork, a model to make, files to look for; and a server to start, which imports torch.
PROCESS_SECONDS, SERVER_SECONDS = 0.4, 3.0


def choose_records(workload: Workload, profile: Profile, seconds_left: float) -> int:
    """Whole batches, as many as have room in `seconds_left` by what the profile tells; all records where they have."""
    settings, available = workload.settings, len(workload.whole)
    if settings.records is not None:
        whole = max(1, settings.records // settings.batch_size) * settings.batch_size
        return available if settings.records >= available else min(whole, available)
    most = available // settings.batch_size
    if most <= FEWEST_BATCHES or seconds_needed(workload, profile, most + 1) <= seconds_left:
        return available
    # The more batches the longer it takes; a source may have millions of them.
    numbers = range(FEWEST_BATCHES, most + 1)
    with_room = bisect_right(numbers, seconds_left, key=lambda batches: seconds_needed(workload, profile, batches))
    return numbers[max(0, with_room - 1)] * settings.batch_size


def seconds_needed(workload: Workload, profile: Profile, batches: int) -> float:
    """An estimate of what a comparison over `batches` batches takes after its profile."""
    size = workload.settings.batch_size
    rounds = workload.settings.rounds or ROUNDS_WANTED
    chosen = workload.candidates()
    extras = [each for each in workload.stage_candidates() if each not in chosen]
    total = rounds * SERVER_SECONDS
    for stage in {each.stage for each in (*chosen, *extras) if each.is_presaved}:
        all_stages, left = stage_seconds(profile, None), stage_seconds(profile, stage)
        formats = len(workload.settings.formats) if stage == workload.cut else 1
        total += PROCESS_SECONDS + formats * batches * size * (all_stages - left) / workload.cpus
    for candidate in (*chosen, *extras):
        threads = workload.threads(candidate, profile.is_on_device)
        compute = float(profile.compute_seconds[str(threads.compute)])
        load = size * stage_seconds(profile, candidate.stage if candidate.is_presaved else None)
        total += PROCESS_SECONDS + batches * load  # the check
        if candidate in extras:
            total += FEWEST_WITHOUT_CLAIM * (PROCESS_SECONDS + (batches + 1) * load)
            continue
        at_once = slowdowns(workload, profile, threads) is not None
        epoch = batches * (max(load, compute) if at_once else load + compute)
        warm_up = (1 + WARM_UP_BATCHES) * load + WARM_UP_BATCHES * compute
        alone = max(FEWEST_STEPS * compute, compute_seconds(workload.settings.budget_seconds))
        total += rounds * (PROCESS_SECONDS + warm_up + alone + epoch)
        total += min(rounds, ROUNDS_WITH_ETL_ALONE) * batches * load + CHECKED_STEPS * compute
        if candidate.is_ahead:
            total += PROCESS_SECONDS + warm_up + epoch * min(1.0, TIMELINE_BATCHES / batches)
    return total
