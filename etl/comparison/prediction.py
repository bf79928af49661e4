"""Predictions from the profile of the raw pipeline: seconds of an epoch, and how many records there is time for."""

from __future__ import annotations

from bisect import bisect_right

import presave
from etl.comparison.candidates import Candidate, Threads
from etl.comparison.measure import CHECKED_STEPS, MIN_STEPS, TIMELINE_BATCHES, WARM_UP_BATCHES, compute_seconds
from etl.comparison.rounds import MIN_ROUNDS_SHOWN
from etl.comparison.samples import Profile, TriedLoader
from etl.comparison.workload import Workload
from etl.measuring.statistics import MIN_ROUNDS

# The first batch includes the start-up, so the time per batch comes from the others.
MIN_MEASURED_BATCHES = 5
ROUNDS_WANTED = MIN_ROUNDS
# Seconds to fork a process, make a model and look up files.
PROCESS_SECONDS = 0.4

# Slowdown of loading during compute, and of compute during loading, as factors.
Slowdowns = tuple[float, float]


def choose_records(workload: Workload, profile: Profile, seconds_left: float, start_seconds: float) -> int:
    """Return how many records to measure.

    Parameters
    ----------
    workload : Workload
        The work.
    profile : Profile
        Profile of the raw pipeline.
    seconds_left : float
        Time for everything that comes after the profile.
    start_seconds : float
        Time to start the server of a round.

    Returns
    -------
    The number of records: all if there is time, otherwise that of as many whole batches as there is time for. Several
    ranks always get whole batches, equally many. If
    `settings.records` or `settings.epoch_batches` is set, it is used instead of the time; with `settings.check_epoch`
    all are measured.
    """
    settings = workload.settings
    available = len(workload.source)
    if settings.ranks > 1:
        available = whole_steps(available, workload.step_records)
    if settings.check_epoch:
        return available
    wanted = settings.records
    if wanted is None and settings.epoch_batches is not None:
        wanted = settings.epoch_batches * workload.step_records
    if wanted is not None:
        whole = max(1, wanted // workload.step_records) * workload.step_records
        return available if wanted >= available else min(whole, available)
    most = available // workload.step_records
    if most <= MIN_MEASURED_BATCHES or seconds_needed(workload, profile, most + 1, start_seconds) <= seconds_left:
        return available
    # Time grows with the number of batches, so bisect: a source may have millions of batches.
    numbers = range(MIN_MEASURED_BATCHES, most + 1)
    with_room = bisect_right(
        numbers, seconds_left, key=lambda batches: seconds_needed(workload, profile, batches, start_seconds)
    )
    return numbers[max(0, with_room - 1)] * workload.step_records


def whole_steps(records: int, step_records: int) -> int:
    """Return `records`, or fewer, so that every rank has the same number of complete batches.

    Parameters
    ----------
    records : int
        Records that could be measured.
    step_records : int
        Records of all ranks in a step.

    Raises
    ------
    ValueError
        If they are not enough for one step.
    """
    if records < step_records:
        raise ValueError(
            f"one step of all ranks takes {step_records:,} records, and there are {records:,}: compare with fewer "
            "--ranks, or with a smaller --batch-size"
        )
    return records // step_records * step_records


def seconds_needed(workload: Workload, profile: Profile, batches: int, start_seconds: float) -> float:
    """Estimate the seconds that a comparison takes after its profile.

    Parameters
    ----------
    workload : Workload
        The work.
    profile : Profile
        Profile of the raw pipeline.
    batches : int
        Batches of an epoch, on each rank.
    start_seconds : float
        Time to start the server of a round.
    """
    size = workload.settings.batch_size
    rounds = workload.settings.rounds or ROUNDS_WANTED
    loads = min(rounds, workload.settings.etl_alone_rounds)
    chosen = workload.candidates()
    loading_only = [each for each in workload.stage_candidates() if each not in chosen]
    total = rounds * start_seconds
    writers = workload.cpus if workload.is_thread_safe else 1
    for stage in {each.stage for each in (*chosen, *loading_only) if each.is_presaved}:
        all_stages, left = stage_seconds(profile, None), stage_seconds(profile, stage)
        formats = len(workload.settings.formats) if stage == workload.presave_stage else 1
        total += PROCESS_SECONDS + formats * batches * size * (all_stages - left) / writers
    for candidate, tried in workload.tried.items():
        total += _foreign_seconds(
            tried,
            batches,
            rounds,
            loads,
            workload.prepare_seconds_per_record.get(candidate, 0.0) * workload.step_records,
        )
    for candidate in (*chosen, *loading_only):
        if candidate.is_foreign:
            continue
        threads = workload.threads(candidate, profile.is_on_device)
        compute = float(profile.compute_seconds[str(threads.compute)]) * workload.compute_crowding
        load = size * stage_seconds(profile, candidate.stage if candidate.is_presaved else None) * workload.crowding
        total += PROCESS_SECONDS + batches * load  # the check
        if candidate in loading_only:
            total += MIN_ROUNDS_SHOWN * (PROCESS_SECONDS + (batches + 1) * load)
            continue
        at_once = slowdowns(workload, profile, threads) is not None
        epoch = batches * (max(load, compute) if at_once else load + compute)
        warm_up = (1 + WARM_UP_BATCHES) * load + WARM_UP_BATCHES * compute
        if workload.tried:
            warm_up += batches * load
        alone = max(MIN_STEPS * compute, compute_seconds(workload.settings.budget_seconds))
        total += rounds * (PROCESS_SECONDS + warm_up + alone + epoch)
        total += loads * batches * load + CHECKED_STEPS * compute
        if candidate.is_ahead:
            total += PROCESS_SECONDS + warm_up + epoch * min(1.0, TIMELINE_BATCHES / batches)
    return total


def _foreign_seconds(tried: TriedLoader, batches: int, rounds: int, loads: int, prepare: float) -> float:
    """Estimate the seconds that a loader of the user takes in a comparison.

    Parameters
    ----------
    tried : TriedLoader
        Its first try.
    batches : int
        Batches of an epoch.
    rounds, loads : int
        Rounds, and those of them in which loading alone is measured, too.
    prepare : float
        Seconds to prepare the records of a batch.
    """
    epoch = tried.first_seconds + batches * tried.seconds_per_batch
    compute = batches * tried.compute_seconds
    # The check has two epochs. A sample has one to warm up and one that is timed; the first rounds have one more.
    check = PROCESS_SECONDS + 2 * epoch
    samples = rounds * (PROCESS_SECONDS + 2 * epoch + compute) + loads * epoch
    return batches * prepare + check + samples + (rounds + 2) * tried.start_seconds


def predict_wall(workload: Workload, candidate: Candidate, threads: Threads, profile: Profile) -> float:
    """Predict the seconds of an epoch of the whole source.

    If loading and compute alternate, an epoch takes the sum of both. They overlap if the strategy loads ahead or if
    compute runs on a device. Then an epoch takes the loading of its first batch, and after it, per batch, the longer of
    the two. Each slows the other down while both are running.

    Parameters
    ----------
    workload : Workload
        The work.
    candidate : Candidate
        The way to load.
    threads : Threads
        Its CPU split.
    profile : Profile
        Profile of the raw pipeline.
    """
    size = min(workload.settings.batch_size, len(workload.source))
    load = loading_seconds(workload, candidate, profile) * size
    compute = float(profile.compute_seconds[str(threads.compute)])
    split = profile.split(threads)
    if split is not None:
        # How loading scales with threads is a property of the machine, measured on the raw pipeline.
        load /= stage_seconds(profile, None) * split.records_per_second
    load *= workload.crowding
    compute *= workload.compute_crowding
    batches = len(workload.source) / (size * workload.rank.world_size)
    return wall_seconds(batches, load, compute, slowdowns(workload, profile, threads))


def slowdowns(workload: Workload, profile: Profile, threads: Threads) -> Slowdowns | None:
    """Return the factors by which loading and compute slow each other down; None if they alternate.

    Parameters
    ----------
    workload : Workload
        The work.
    profile : Profile
        Profile of the raw pipeline.
    threads : Threads
        The CPU split.
    """
    split = profile.split(threads)
    if split is not None:
        return split.loading_slowdown, split.compute_slowdown
    # Even a training loop that loads itself overlaps with a device: it loads while one step is in flight.
    return (1.0, 1.0) if profile.device != "cpu" and not workload.settings.waits_for_steps else None


def wall_seconds(batches: float, load: float, compute: float, factors: Slowdowns | None) -> float:
    """Return the seconds of an epoch.

    Parameters
    ----------
    batches : float
        Batches of the epoch.
    load, compute : float
        Seconds per batch of loading alone and of compute alone.
    factors : (float, float) or None
        Slowdown of loading, and of compute; None if they alternate.
    """
    if factors is None:
        return batches * (load + compute)
    both = overlapped_seconds(load, compute, *factors)
    return load + compute + (batches - 1) * both


def overlapped_seconds(load: float, compute: float, loading_slowdown: float, compute_slowdown: float) -> float:
    """Return the seconds per batch if the next batch is loaded while this one is computed on.

    Parameters
    ----------
    load, compute : float
        Seconds per batch of each alone.
    loading_slowdown, compute_slowdown : float
        Factors by which each takes longer while the other is running. Once one is done, the other is as fast as alone.
    """
    slow_load, slow_compute = load * loading_slowdown, compute * compute_slowdown
    if slow_load >= slow_compute:
        # During compute, loading progresses by slow_compute / loading_slowdown.
        return load + slow_compute * (1 - 1 / loading_slowdown)
    return compute + slow_load * (1 - 1 / compute_slowdown)


def loading_seconds(workload: Workload, candidate: Candidate, profile: Profile) -> float:
    """Predict how many seconds one thread takes to load a record.

    Parameters
    ----------
    workload : Workload
        The work.
    candidate : Candidate
        The way to load.
    profile : Profile
        Profile of the raw pipeline.
    """
    decoder = candidate.setting("decoder")
    if not candidate.is_presaved:
        return stage_seconds(profile, None, decoder)
    rate = float(profile.copy_bytes_per_second)
    left = stage_seconds(profile, candidate.stage, decoder)
    if not workload.store_path(candidate.store).exists():  # it is as large as its records are
        return profile.nbytes_after(str(candidate.stage)) / rate + left
    with workload.open(candidate) as store:
        nbytes = store.nbytes / len(store)
        if store.reads_whole_shards:
            # Bytes are copied twice: whole shards out of the file, then rows out of the shards.
            read = _shards_a_batch(store, workload.settings.batch_size) * store.nbytes / len(store.manifest.shards)
            nbytes = 2 * read / workload.settings.batch_size
    return nbytes / rate + left


def stage_seconds(profile: Profile, after: str | None, decoder: str | None = None) -> float:
    """Return the seconds per record, in one thread, of some stages.

    Parameters
    ----------
    profile : Profile
        Profile of the raw pipeline.
    after : str or None
        The stage before the first of them; None for all stages.
    decoder : str, optional
        Decoder; by default that of the comparison.
    """
    stages = profile.stages if decoder is None else profile.decodings.get(decoder, profile.stages)
    first = 0 if after is None else 1 + [stage.name for stage in stages].index(after)
    return float(sum(stage.seconds_per_record for stage in stages[first:]))


def _shards_a_batch(store: presave.Store, batch_size: int) -> float:
    """Return the expected number of distinct shards in a shuffled batch."""
    shards = len(store.manifest.shards)
    return float(shards * (1 - (1 - 1 / shards) ** batch_size))
