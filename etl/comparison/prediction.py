"""How long an epoch of a strategy will take, from the profile of the raw pipeline alone."""

from __future__ import annotations

import presave
from etl.comparison.candidate import Candidate
from etl.comparison.samples import Profile
from etl.comparison.threads import Threads
from etl.comparison.workload import Workload

# How many times as long as alone loading takes beside compute, and compute beside loading.
Slowdowns = tuple[float, float]


def predict_wall(workload: Workload, candidate: Candidate, threads: Threads, profile: Profile) -> float:
    """Seconds of an epoch of the whole source.

    A plain strategy takes the sum of loading and compute. One that loads ahead, or any beside a device, takes the first
    batch's loading and then, for each batch, the longer of both, in which each slows the other down while both are at
    work.
    """
    size = min(workload.settings.batch_size, len(workload.whole))
    load = loading_seconds(workload, candidate, profile) * size
    compute = float(profile.compute_seconds[str(threads.compute)])
    split = profile.split(threads)
    if split is not None:
        # What one more thread gains is a property of the machine, seen with the raw pipeline.
        load /= stage_seconds(profile, None) * split.records_per_second
    return wall_seconds(len(workload.whole) / size, load, compute, slowdowns(workload, profile, threads))


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
    both = side_by_side(load, compute, *beside)
    return load + compute + (batches - 1) * both


def side_by_side(load: float, compute: float, loading_slowdown: float, compute_slowdown: float) -> float:
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
