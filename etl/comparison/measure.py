"""Measurements of one way to load, in the process that loads: a checked epoch, samples, a short try.

The environment of another library's loader needs no more than numpy, psutil and xxhash for this module.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from etl.comparison.epoch_content import EpochRecorder, may_hold
from etl.comparison.epochs import Epochs, Loading, partial_epoch
from etl.comparison.samples import CheckedEpoch, LoadingSample, Sample, Spans, StepTimes, TriedLoader, TuningSample
from etl.comparison.steps import Compute
from etl.comparison.trials import seconds_per_batch
from etl.measuring.arrays import (
    Access,
    access_of,
    copy_of,
    layout_of,
    memory_of,
    page_count,
    record_digests,
    touch,
    views_in,
)
from etl.measuring.clock import EpochTimes, Split, Step, run_epoch, seconds_of_step
from etl.measuring.device import peak_device_memory
from etl.measuring.meeting import Meeting
from etl.measuring.noise import NoiseWatch, ThrottleWatch, frequencies, probe_speed
from etl.measuring.page_cache import absent_pages, reports_pages
from etl.measuring.process_tree import PeakMemory, cpu_seconds, mapped_nbytes, read_nbytes
from etl.measuring.structure import record_count
from etl.measuring.waiting import BusyThreads, WaitWatch
from etl.strategies.foreign import close_loader
from etl.strategies.torch_loader import given_torch_settings, torch_settings

if TYPE_CHECKING:
    from etl.runtime import Policy

# Batches before a sample, so that allocators, caches and thread pools are as in the middle of an epoch.
WARM_UP_BATCHES = 2
# Compute alone: at least this many steps, for this many seconds or this share of the budget, whichever is less.
MIN_STEPS, COMPUTE_SECONDS, COMPUTE_SHARE = 1, 0.3, 1 / 400
# Few steps are enough to compare losses: equal weights trained on equal batches have equal losses after any number.
CHECKED_STEPS = 2
TIMELINE_BATCHES = 8
HARNESS_BATCHES = 50
# If shapes may differ between batches, compute alone is timed on the first batches that fit in this.
RESIDENT_NBYTES = 256 << 20
# An epoch that has this many times its records does not end, or repeats them.
ENDLESS = 2

Policies = Sequence["Policy"]


def try_loader(loading: Loading, step_records: int, seconds: float) -> TriedLoader:
    """Load for a few seconds, and compute: how long an epoch takes is not known yet.

    Parameters
    ----------
    loading : Loading
        The way to load.
    step_records : int
        Records of a batch, of all ranks together.
    seconds : float
        Loading ends after this time, or with the first epoch.
    """
    started = time.perf_counter()
    with Epochs(loading) as epochs:
        length = _length(epochs.loader)
        batches, ended = iter(epochs), False
        first = next(batches, None)
        if first is None:
            raise ValueError("its first epoch has no batches")
        touch(first)
        first_seconds = time.perf_counter() - started
        copied, samples, count = copy_of(first), record_count(first), 1
        del first
        since = time.perf_counter()
        while not ended and time.perf_counter() - since < seconds:
            batch = next(batches, None)
            ended = batch is None
            if not ended:
                touch(batch)
                samples += record_count(batch)
                count += 1
            del batch
        rest = time.perf_counter() - since
        close_loader(batches)
        del batches
        read_ahead = _read_ahead(epochs.loader)
        settings = torch_settings(epochs.loader, len(os.sched_getaffinity(0)))
        given = given_torch_settings(epochs.loader)
    compute = loading.make_compute(copied)
    compute.step(copied)
    return TriedLoader(
        first_seconds=first_seconds,
        seconds_per_batch=rest / max(1, count - 1),
        batches=count,
        samples=samples,
        has_ended=ended,
        epoch_batches=count if ended else length,
        read_ahead=read_ahead,
        has_selected_records=_may_have_selected(count if ended else length, loading.records, step_records),
        compute_seconds=seconds_of_step(compute.step, [copied], loading.compute_seconds),
        device=compute.device,
        settings={name: list(values) for name, values in settings.items()},
        given={name: given[name] for name in settings},
    )


def _length(loader: Any) -> int | None:
    """Return the number of batches that `loader` says an epoch has; None if it does not say."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _may_have_selected(batches: int | None, records: int | None, batch_size: int) -> bool:
    """Return True if an epoch of `batches` may have the selected `records`; False if either is unknown."""
    if batches is None or records is None:
        return False
    return may_hold(batches, records, batch_size, len(os.sched_getaffinity(0)))


def _read_ahead(loader: Any) -> int:
    """Return the number of batches that `loader` may read ahead: what a torch DataLoader says, otherwise a guess."""
    workers, factor = getattr(loader, "num_workers", None), getattr(loader, "prefetch_factor", None)
    if isinstance(workers, int):
        return workers * (factor if isinstance(factor, int) else 1)
    return 2 * len(os.sched_getaffinity(0)) + 1


def check_epoch(loading: Loading, trains: bool, arrays_file: str, looks_again: bool) -> CheckedEpoch:
    """Run one untimed epoch: digest its batches, watch its memory, and train on the first of them.

    Parameters
    ----------
    loading : Loading
        The way to load.
    trains : bool
        Train on the first batches.
    arrays_file : str
        File for the signatures and labels of the records.
    looks_again : bool
        Run another epoch, to see whether there is one and whether its order is another.
    """
    content = EpochRecorder()
    absent = pages = 0
    unread = ""
    mapped: dict[str, int] = {}
    compute: Compute | None = None
    waits: list[float] = []
    started = time.perf_counter()
    with Epochs(loading) as epochs:
        made = time.perf_counter() - started
        epochs.prepare()
        with PeakMemory() as memory:
            for batch in _ended(epochs, loading, waits):
                touch(batch)
                pages += page_count(batch)
                unread = unread or describe_unread(access_of(batch))
                absent += sum(absent_pages(each) for each in map(memory_of, views_in(batch)) if each.ndim == 1)
                content.add(batch)  # before a step of the user, which may change the batch
                if trains and len(content.digests) <= CHECKED_STEPS and _has_each_a_batch(loading.meeting):
                    compute = compute or loading.make_compute(batch)
                    compute.step(batch)
                del batch
            if loading.meeting is not None:
                mapped = mapped_nbytes()
                if trains:  # ranks that have more batches wait for this one
                    for _ in range(len(content.digests), CHECKED_STEPS):
                        loading.meeting.gather(0.0)
        if not content.digests:
            raise ValueError("its epoch has no batches")
        again: list[str] | None = None
        if looks_again:
            again = [digest for batch in _ended(epochs, loading, waits) for digest in record_digests(batch)]
            if not again:
                raise ValueError(
                    "its second epoch has no batches: return an object of which every iteration is an epoch"
                )
    return CheckedEpoch(
        content=content.finish(arrays_file),
        reshuffles=None if again is None or sorted(again) != sorted(content.records) else again != content.records,
        score=None if compute is None else compute.score,
        weights=None if compute is None else compute.weights,
        pages_touched=pages,
        pages_absent=absent,
        unread=unread,
        peak_memory=memory.nbytes,
        mapped=mapped,
        peak_device_memory=peak_device_memory(),
        make_seconds=made,
        epoch_waits=waits,
    )


def _has_each_a_batch(meeting: Meeting | None) -> bool:
    """Return whether all ranks have a batch, as this one has: they would wait for ever for one that has not."""
    return meeting is None or all(meeting.gather(1.0))


def describe_unread(access: Access) -> str:
    """Say which arrays of a batch `touch` does not read, and why; return nothing if it reads all."""
    found = [f"{nbytes / 1e6:,.1f} MB on {device} were waited for" for device, nbytes in access.on_device.items()]
    found += [
        f"{nbytes / 1e6:,.1f} MB of {kind} were not read, because only a copy would show what they contain"
        for kind, nbytes in access.unread.items()
    ]
    return ", ".join(found)


def _ended(epochs: Epochs, loading: Loading, waits: list[float]) -> Iterator[Any]:
    """Yield the batches of an epoch; raise `ValueError` if it does not end after twice its records.

    Parameters
    ----------
    epochs : Epochs
        The epochs.
    loading : Loading
        The way to load.
    waits : list of float
        Gets the seconds that the epoch's batches were waited for.
    """
    most = None if loading.records is None else ENDLESS * loading.records
    samples = 0
    waited = -time.perf_counter()
    for batch in epochs:
        waited += time.perf_counter()
        samples += record_count(batch)
        yield batch
        del batch
        if most is not None and samples > most:
            raise ValueError(
                f"its epoch does not end: it gave {samples:,} records, and the source has {loading.records:,}; with "
                "--epoch-batches N an epoch is N batches"
            )
        waited -= time.perf_counter()
    waits.append(waited + time.perf_counter())


def take_sample(loading: Loading, policies: Policies, with_etl_alone: bool) -> Sample:
    """Take one sample of all metrics.

    A new process is slow until its allocators, caches and thread pools are as in the middle of an epoch, so a few
    batches warm it up before anything is timed. A loader that cannot abandon an epoch loads a whole one.

    Parameters
    ----------
    loading : Loading
        The way to load.
    policies : sequence of Policy
        Active runtime policies, whose effect is audited.
    with_etl_alone : bool
        Also time an epoch of loading alone.
    """
    with Epochs(loading) as epochs:
        outside = 0 if loading.is_cold else epochs.prepare()
        compute, resident = warm_up(epochs, loading)
        # A loader that reads ahead of its epochs gets a start in a pause between them, and while the epoch before
        # computes. So only the counters are read between them, and loading alone does not come after compute.
        etl_alone: EpochTimes | None = None
        etl_cpu: float | None = None
        if with_etl_alone:
            outside += epochs.begin()
            _begin_together(loading.meeting)
            etl_cpu = -cpu_seconds()
            etl_alone = run_epoch(epochs, None)
            etl_cpu += cpu_seconds()
        outside += epochs.begin()
        with WaitWatch() as waits:
            read = read_nbytes()
            _begin_together(loading.meeting)
            with NoiseWatch() as noise:
                times = run_epoch(epochs, compute.step, waits)
            read = read_nbytes() - read
        transfers = compute.transfers
        # Pages that are missing now say nothing about these epochs: the kernel may drop pages of any file at any time.
        affinity, threads = sorted(os.sched_getaffinity(0)), _compute_threads()
    # The loader is closed, so nothing else runs beside compute.
    with BusyThreads() as computing:
        compute_alone = _compute_alone(compute.step, resident, loading)
    return Sample(
        epoch=times.metrics,
        etl_alone=None if etl_alone is None else etl_alone.wall,
        stalls=times.stalls.tolist(),
        compute_alone=compute_alone,
        harness=_harness_seconds(resident[0], compute.no_op),
        cpu_seconds=noise.own_seconds,
        read_nbytes=read + loading.mapped_nbytes,
        steal=noise.steal,
        other_processes=noise.other_processes,
        speed_probe=probe_speed().cpu,
        frequencies=frequencies(),
        affinity=affinity,
        torch_threads=threads,
        device=compute.device,
        misplaced_pages=outside,
        unreported_files=sum(not reports_pages(each) for each in loading.files),
        timeline=loop_spans(times, loading.is_ahead),
        runtime=[policy.audit() for policy in policies],
        etl_cpu_seconds=etl_cpu,
        steps=None if loading.meeting is None else StepTimes(times.began.tolist(), times.done.tolist()),
        loading_waits=waits.times(computing.names),
        transfer=None if transfers is None else Split(sum(transfers[:1]), sum(transfers[1:])),
        throttled=noise.throttled,
    )


def take_tuning_sample(loading: Loading, read_ahead: int | None, may_end: bool = False) -> TuningSample:
    """Train on the batches of an epoch, for tuning: nothing but its time and memory is measured.

    Parameters
    ----------
    loading : Loading
        The way to load.
    read_ahead : int or None
        Batches that it loads ahead; None for as many as the loader says.
    may_end : bool
        True if an untimed epoch may be loaded to its end.
    """
    with Epochs(loading) as epochs:
        epochs.prepare()
        with PeakMemory() as memory:
            compute, _ = warm_up(epochs, loading)
        if may_end and getattr(epochs.loader, "persistent_workers", False):
            # The next epoch of a DataLoader would first wait for all that its workers still load of this one.
            for _ in epochs.loader:
                pass
        epochs.begin()
        with ThrottleWatch() as quota:
            times = run_epoch(epochs, compute.step)
        ahead = _read_ahead(epochs.loader) if read_ahead is None else read_ahead
    first_seconds = float(times.done[0]) - times.started
    return TuningSample(first_seconds, seconds_per_batch(times, ahead), memory.nbytes, quota.throttled)


def _begin_together(meeting: Meeting | None) -> None:
    if meeting is not None:
        meeting.wait()


def _compute_alone(step: Step, resident: Sequence[Any], loading: Loading) -> float:
    """Return the mean seconds of a step on batches in memory. All ranks take equally many steps."""
    meeting, seconds = loading.meeting, loading.compute_seconds
    if meeting is None:
        return seconds_of_step(step, resident, seconds, MIN_STEPS)
    chosen = resident[: int(min(meeting.gather(len(resident))))]
    one = max(meeting.gather(seconds_of_step(step, chosen, 0.0)))
    return seconds_of_step(step, chosen, 0.0, max(MIN_STEPS, math.ceil(seconds / one)))


def take_loading_sample(loading: Loading) -> LoadingSample:
    """Take one sample of loading alone."""
    with Epochs(loading) as epochs:
        _load_first(epochs)
        outside = epochs.prepare()
        _begin_together(loading.meeting)
        times = run_epoch(epochs, None)
    return LoadingSample(times.wall, outside)


def _load_first(epochs: Epochs) -> None:
    with partial_epoch(epochs) as batches:
        next(batches)


def warm_up(epochs: Epochs, loading: Loading) -> tuple[Compute, list[Any]]:
    """Train on the first batches. Return the compute, and copies of batches: several if their shapes differ."""
    with partial_epoch(epochs) as batches:
        batch = next(batches)
        first = copy_of(batch)
        compute = loading.make_compute(first)
        compute.step(batch)
        layouts = [layout_of(batch)]
        for number, batch in enumerate(batches, start=1):
            if number < WARM_UP_BATCHES:
                compute.step(batch)
                layouts.append(layout_of(batch))
            elif loading.short_warm_up:
                break
        del batch
    if all(each == layouts[0] for each in layouts):
        return compute, [first]
    return compute, _resident_batches(epochs, loading)


def _resident_batches(epochs: Epochs, loading: Loading) -> list[Any]:
    """Return copies of the first batches, up to `RESIDENT_NBYTES`: a loader may reuse the memory of its batches."""
    copies: list[Any] = []
    room = RESIDENT_NBYTES
    with partial_epoch(epochs) as batches:
        for batch in batches:
            room -= access_of(batch).read
            if copies and room < 0:
                if loading.can_rewind:
                    break
                continue
            copies.append(copy_of(batch))
            del batch
    return copies


def loop_spans(times: EpochTimes, is_ahead: bool) -> Spans:
    """Return the spans of stalls and steps in the first batches.

    Unless `is_ahead`, the training loop itself loads, from asking for a batch until it has it.
    """
    asked, stalled, loaded, began, done = (
        (each[:TIMELINE_BATCHES] - times.started).tolist()
        for each in (times.asked, times.stalled, times.loaded, times.began, times.done)
    )
    loads = [] if is_ahead else [(0, *span, batch) for batch, span in enumerate(zip(asked, loaded, strict=True))]
    return Spans(list(zip(stalled, loaded, strict=True)), list(zip(began, done, strict=True)), loads)


def _harness_seconds(batch: Any, nothing: Step) -> float:
    """Return the overhead of the measuring loop in seconds per batch: wall time that is neither stall nor compute."""
    times = run_epoch(repeat(batch, HARNESS_BATCHES), nothing)
    wall, stall, compute = times.wall, times.stall, times.compute
    return (wall.total - stall.total - compute.total) / times.batches


def _compute_threads() -> int:
    """Return torch's compute threads in this process; 0 if it has not loaded torch."""
    torch = sys.modules.get("torch")
    return 0 if torch is None else int(torch.get_num_threads())


def compute_seconds(budget_seconds: float) -> float:
    """Return how long to time compute alone in a comparison of `budget_seconds`."""
    return min(COMPUTE_SECONDS, budget_seconds * COMPUTE_SHARE)
