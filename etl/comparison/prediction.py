"""How much is done for each figure.

How many records to measure, so that enough rounds have room in the time that is left.

How long an epoch of a strategy will take, from the profile of the raw pipeline alone.
"""

from __future__ import annotations

from bisect import bisect_right

import presave
from etl.comparison.rounds import MIN_ROUNDS_SHOWN, ROUNDS_WITH_ETL_ALONE
from etl.comparison.samples import Profile
from etl.comparison.settings import Candidate, Threads
from etl.comparison.workload import Workload
from etl.measuring.statistics import MIN_ROUNDS

# Before anything of a sample is timed: allocators, caches and thread pools then are as in the middle of an epoch.
WARM_UP_BATCHES = 2
# Before the trials of a split, which shows no figures, only which one is the fastest.
SPLIT_WARM_UP_BATCHES = 2
# Compute alone: so many steps, or more until so many seconds have gone, fewer where there is little time.
MIN_STEPS, COMPUTE_SECONDS, COMPUTE_SHARE = 1, 0.3, 1 / 400
# Equal weights that were trained on equal batches have equal losses after any number of steps.
CHECKED_STEPS = 2
TIMELINE_BATCHES = 8
HARNESS_BATCHES = 50
# Of batches whose shapes differ as many are kept to compute on as have room.
RESIDENT_NBYTES = 256 << 20


def compute_seconds(budget_seconds: float) -> float:
    """For how long compute alone is measured, in a comparison of so many seconds."""
    return min(COMPUTE_SECONDS, budget_seconds * COMPUTE_SHARE)


# The first batch has the start-up in it; the others tell what a batch takes.
MIN_MEASURED_BATCHES = 5
ROUNDS_WANTED = MIN_ROUNDS
# A process to fork, a model to make, files to look for; and a server to start, which imports torch.
PROCESS_SECONDS, SERVER_SECONDS = 0.4, 3.0


def choose_records(workload: Workload, profile: Profile, seconds_left: float) -> int:
    """Whole batches, as many as have room in `seconds_left` by what the profile tells; all records where they have."""
    settings, available = workload.settings, len(workload.source)
    if settings.records is not None:
        whole = max(1, settings.records // settings.batch_size) * settings.batch_size
        return available if settings.records >= available else min(whole, available)
    most = available // settings.batch_size
    if most <= MIN_MEASURED_BATCHES or seconds_needed(workload, profile, most + 1) <= seconds_left:
        return available
    # The more batches the longer it takes; a source may have millions of them.
    numbers = range(MIN_MEASURED_BATCHES, most + 1)
    with_room = bisect_right(numbers, seconds_left, key=lambda batches: seconds_needed(workload, profile, batches))
    return numbers[max(0, with_room - 1)] * settings.batch_size


def seconds_needed(workload: Workload, profile: Profile, batches: int) -> float:
    """An estimate of what a comparison over `batches` batches takes after its profile."""
    size = workload.settings.batch_size
    rounds = workload.settings.rounds or ROUNDS_WANTED
    chosen = workload.candidates()
    loading_only = [each for each in workload.stage_candidates() if each not in chosen]
    total = rounds * SERVER_SECONDS
    for stage in {each.stage for each in (*chosen, *loading_only) if each.is_presaved}:
        all_stages, left = stage_seconds(profile, None), stage_seconds(profile, stage)
        formats = len(workload.settings.formats) if stage == workload.presave_stage else 1
        total += PROCESS_SECONDS + formats * batches * size * (all_stages - left) / workload.cpus
    for candidate in (*chosen, *loading_only):
        threads = workload.threads(candidate, profile.is_on_device)
        compute = float(profile.compute_seconds[str(threads.compute)])
        load = size * stage_seconds(profile, candidate.stage if candidate.is_presaved else None)
        total += PROCESS_SECONDS + batches * load  # the check
        if candidate in loading_only:
            total += MIN_ROUNDS_SHOWN * (PROCESS_SECONDS + (batches + 1) * load)
            continue
        at_once = slowdowns(workload, profile, threads) is not None
        epoch = batches * (max(load, compute) if at_once else load + compute)
        warm_up = (1 + WARM_UP_BATCHES) * load + WARM_UP_BATCHES * compute
        alone = max(MIN_STEPS * compute, compute_seconds(workload.settings.budget_seconds))
        total += rounds * (PROCESS_SECONDS + warm_up + alone + epoch)
        total += min(rounds, ROUNDS_WITH_ETL_ALONE) * batches * load + CHECKED_STEPS * compute
        if candidate.is_ahead:
            total += PROCESS_SECONDS + warm_up + epoch * min(1.0, TIMELINE_BATCHES / batches)
    return total


# How many times as long as alone loading takes beside compute, and compute beside loading.
Slowdowns = tuple[float, float]


def predict_wall(workload: Workload, candidate: Candidate, threads: Threads, profile: Profile) -> float:
    """Seconds of an epoch of the whole source.

    A plain strategy takes the sum of loading and compute. One that loads ahead, or any beside a device, takes the first
    batch's loading and then, for each batch, the longer of both, in which each slows the other down while both are at
    work.
    """
    size = min(workload.settings.batch_size, len(workload.source))
    load = loading_seconds(workload, candidate, profile) * size
    compute = float(profile.compute_seconds[str(threads.compute)])
    split = profile.split(threads)
    if split is not None:
        # What one more thread gains is a property of the machine, seen with the raw pipeline.
        load /= stage_seconds(profile, None) * split.records_per_second
    return wall_seconds(len(workload.source) / size, load, compute, slowdowns(workload, profile, threads))


def slowdowns(workload: Workload, profile: Profile, threads: Threads) -> Slowdowns | None:
    """Return how loading and compute slow each other down; None if one is done after the other."""
    split = profile.split(threads)
    if split is not None:
        return split.loading_slowdown, split.compute_slowdown
    # Beside one step in flight on a device, the training loop itself loads.
    return (1.0, 1.0) if profile.device != "cpu" and not workload.settings.waits_for_steps else None


def wall_seconds(batches: float, load: float, compute: float, beside: Slowdowns | None) -> float:
    """Return the seconds of an epoch whose batches take `load` seconds to load and `compute` to train on, each alone.

    `beside` says how they slow each other down; None if one is done after the other.
    """
    if beside is None:
        return batches * (load + compute)
    both = overlapped_seconds(load, compute, *beside)
    return load + compute + (batches - 1) * both


def overlapped_seconds(load: float, compute: float, loading_slowdown: float, compute_slowdown: float) -> float:
    """Seconds of a batch when loading the next and computing on this one go on at once, each taking so many times as
    long while the other is at work, and as long as alone when the other is done.
    """
    slow_load, slow_compute = load * loading_slowdown, compute * compute_slowdown
    if slow_load >= slow_compute:
        # While compute is at work, loading gets on by slow_compute / loading_slowdown.
        return load + slow_compute * (1 - 1 / loading_slowdown)
    return compute + slow_load * (1 - 1 / compute_slowdown)


def loading_seconds(workload: Workload, candidate: Candidate, profile: Profile) -> float:
    """Seconds of one thread to load a record."""
    if not candidate.is_presaved:
        return stage_seconds(profile, None)
    rate = float(profile.copy_bytes_per_second)
    with workload.open(candidate) as store:
        nbytes = store.nbytes / len(store)
        if store.reads_whole_shards:
            # Copied out of the file, and once more out of what that holds.
            read = _shards_a_batch(store, workload.settings.batch_size) * store.nbytes / len(store.manifest.shards)
            nbytes = 2 * read / workload.settings.batch_size
    return nbytes / rate + stage_seconds(profile, candidate.stage)


def stage_seconds(profile: Profile, after: str | None) -> float:
    """Seconds of one thread for a record in the stages that come after the one called `after`; None: in all of them."""
    stages = profile.stages
    first = 0 if after is None else 1 + [stage.name for stage in stages].index(after)
    return float(sum(stage.seconds_per_record for stage in stages[first:]))


def _shards_a_batch(store: presave.Store, batch_size: int) -> float:
    """How many different shards a shuffled batch needs, on average."""
    shards = len(store.manifest.shards)
    return float(shards * (1 - (1 - 1 / shards) ** batch_size))
