"""A sample: what one process measures of one way to load. It is taken in the same way for every experiment."""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from .arrays import access_of, copy_of, layout_of
from .clock import EpochMetrics, EpochTimes, Split, Step, run_epoch, seconds_of_step
from .epochs import Compute, Epochs, MeasuredLoader, close_loader
from .noise import NoiseWatch, ProbeSeconds, frequencies, probe_speed
from .page_cache import reports_pages
from .process_tree import PeakMemory, cpu_seconds, read_nbytes
from .values import JsonValues
from .waiting import BusyThreads, WaitTimes, WaitWatch

# Steps before anything is timed, so that allocators and thread pools of compute are as in the middle of an epoch.
WARM_UP_STEPS = 1
TIMELINE_BATCHES = 8
HARNESS_BATCHES = 50
# If shapes may differ between batches, compute alone is timed on the first batches that fit in this.
RESIDENT_NBYTES = 256 << 20


@dataclass(frozen=True)
class Recipe(JsonValues):
    """A choice of what is measured of one way to load.

    Attributes
    ----------
    batches : int or None
        Batches that are taken of each epoch; None for all.
    start_up : int
        The first of them, in which the loader gets to its speed: as many as may be in flight.
    epochs : int
        Epochs that are timed, one after the other.
    etl_alone : bool
        Also time an epoch of loading alone.
    compute_seconds : float
        Compute alone is timed for at least this long.
    has_one_layout : bool
        True if the records of all batches are known to have the same layout.
    """

    batches: int | None = None
    start_up: int = 1
    epochs: int = 1
    etl_alone: bool = False
    compute_seconds: float = 0.0
    has_one_layout: bool = False


@dataclass(frozen=True)
class Spans(JsonValues):
    """Spans of waiting, compute and loading in an epoch's first batches, in seconds since it began.

    A span of loading also has its thread and its batch.
    """

    waits: list[tuple[float, float]]
    computes: list[tuple[float, float]]
    loads: list[tuple[int, float, float, int]]


@dataclass(frozen=True)
class StepTimes(JsonValues):
    """When each step of an epoch began and was done, by the clock that all processes of a machine share."""

    began: list[float]
    done: list[float]


@dataclass(frozen=True)
class CachedEpoch(JsonValues):
    """An epoch of loading alone from the page cache: its seconds, and its CPU time."""

    seconds: Split
    cpu_seconds: float


@dataclass(frozen=True)
class RankSample(JsonValues):
    """The timed epoch of one of several ranks.

    Attributes
    ----------
    first_batch : float
        Seconds of the stall before the first batch.
    waits : Split or None
        The part of its steps in which it waited for ranks whose batches came later. None if ranks do not wait for each
        other in every step.
    last : int
        Steps that it began later than all other ranks.
    """

    epoch: EpochMetrics
    first_batch: float
    waits: Split | None
    last: int
    cpus: list[int]


@dataclass(frozen=True)
class Sample(JsonValues):
    """A timed epoch of one way to load, in a fresh process. Times are in seconds, for the batches that were taken.

    If several epochs were timed, times and amounts are means of them.

    Attributes
    ----------
    etl_alone : Split or None
        Times of an epoch of loading alone; None if it was not measured.
    stalls : list of list of float
        Seconds of the stall before each batch, by epoch.
    compute_alone, harness : float
        Seconds per batch of a step on a batch in memory with nothing else running, and of the measuring loop itself.
    cpu_seconds : float
        CPU time of the process and its workers.
    read_nbytes : int
        Bytes read from files, including mapped files.
    peak_memory : int
        Peak memory in bytes, of the process and its workers together, in batches that were not timed.
    steal, other_processes : float
        Shares of the time of its CPUs that were taken by the hypervisor and by other processes.
    throttled : float
        Share of the periods of a CPU quota in which it was used up.
    probes : list of ProbeSeconds
        Seconds of fixed work before the loader was made and after it was closed.
    frequencies : list of float
        MHz of each CPU.
    affinity : list of int
        CPUs that the process was bound to.
    torch_threads : int
        Compute threads; 0 if torch was not loaded.
    misplaced_pages, unreported_files : int
        Pages of its files that were not in the requested cache state, and files for which this cannot be checked.
    steps : StepTimes or None
        Moments of the steps, if this is one of several ranks.
    etl_cpu_seconds : float or None
        CPU time of the epoch of loading alone; None if it was not measured.
    cached_alone : CachedEpoch or None
        A cold epoch of loading alone once more, from the page cache; None if it was not measured.
    loading_waits : WaitTimes or None
        What loading did while the training loop waited, without the very first wait; None if that is unknown.
    transfer : Split or None
        The part of its steps in which they waited for the copy of their batch to the device. None if that is unknown.
    walls : list of float
        Wall seconds of each epoch.
    """

    epoch: EpochMetrics
    etl_alone: Split | None
    stalls: list[list[float]]
    compute_alone: float
    harness: float
    cpu_seconds: float
    read_nbytes: int
    peak_memory: int
    steal: float
    other_processes: float
    probes: list[ProbeSeconds]
    frequencies: list[float]
    affinity: list[int]
    torch_threads: int
    device: str
    misplaced_pages: int
    unreported_files: int
    timeline: Spans
    steps: StepTimes | None = None
    ranks: list[RankSample] = field(default_factory=list)
    etl_cpu_seconds: float | None = None
    cached_alone: CachedEpoch | None = None
    loading_waits: WaitTimes | None = None
    transfer: Split | None = None
    throttled: float = 0.0
    walls: list[float] = field(default_factory=list)

    @property
    def first_stall(self) -> float:
        """The stall before the first batch of an epoch, as the mean of its epochs."""
        return statistics.fmean(each[0] for each in self.stalls)

    @property
    def later_stalls(self) -> list[float]:
        """Stalls of all epochs but before their first batches, unless these are alone."""
        return [stall for each in self.stalls for stall in each[1:] or each]

    @property
    def unexplained(self) -> float:
        """The share of the wall time that is neither stall nor compute nor harness."""
        epoch = self.epoch
        known = epoch.stall.total + epoch.compute.total + self.harness * epoch.batches
        return (epoch.wall.total - known) / epoch.wall.total

    @property
    def storage(self) -> Split | None:
        """The part of the stall in which data were waited for, without that of the start-up; None if unknown.

        A loop beside a device may wait without a stall, so this is a share of the stall.
        """
        waits, stall = self.loading_waits, self.epoch.stall
        storage = None if waits is None else waits.storage
        if waits is None or storage is None:
            return None
        share = storage / waits.waited if waits.waited else 0.0
        return Split(0.0, stall.rest * share, stall.end * share)


def take_sample(loading: MeasuredLoader, recipe: Recipe) -> Sample:
    """Take one sample of all metrics.

    The batches that compute is warmed up and timed with come from a loader of its own, which is closed before the timed
    one is made. So no epoch is abandoned before the timed one, and no loader that reads ahead gets a start. Loading
    alone comes last: a loader that keeps records in its process would begin the timed epoch with them.

    Raises
    ------
    ValueError
        If an epoch has no batches, or another number of records than the one before.
    """
    with PeakMemory() as memory:
        resident = first_copies(loading, recipe.has_one_layout, recipe.batches)
        compute = loading.make_compute(resident[0])
        for _ in range(WARM_UP_STEPS):
            compute.step(resident[0])
    outside = 0
    before = probe_speed()
    with Epochs(loading, recipe.batches) as epochs:
        outside += epochs.prepare()
        with WaitWatch() as waits:
            read = read_nbytes()
            begin_together(loading)
            with NoiseWatch() as noise:
                timed = [run_epoch(epochs, compute.step, waits, recipe.start_up)]
                for _ in range(1, recipe.epochs):
                    outside += epochs.begin()
                    timed.append(run_epoch(epochs, compute.step, waits, recipe.start_up))
            read = read_nbytes() - read
        _check_counts(timed, recipe)
        last = timed[-1]
        transfer = _transfer(compute, last.start_up)  # now, since every step from here on replaces what is known of it
        # Pages that are missing now say nothing about these epochs: the kernel may drop pages of any file at any time.
        affinity, threads = sorted(os.sched_getaffinity(0)), torch_threads()
    # The loader is closed, so nothing else runs beside compute, or beside a probe.
    after = probe_speed()
    with BusyThreads() as computing:
        compute_alone = _compute_alone(compute.step, resident, loading, recipe.compute_seconds)
    etl_alone: EpochTimes | None = None
    etl_cpu: float | None = None
    cached: CachedEpoch | None = None
    if recipe.etl_alone:
        with Epochs(loading, recipe.batches) as epochs:
            outside += epochs.prepare()
            begin_together(loading)
            etl_cpu = -cpu_seconds()
            etl_alone = run_epoch(epochs, None, start_up=recipe.start_up)
            etl_cpu += cpu_seconds()
            if loading.is_cold and loading.can_rewind and loading.meeting is None:
                epochs.rewind()
                cached_cpu = -cpu_seconds()
                again = run_epoch(epochs, None, start_up=recipe.start_up)
                cached = CachedEpoch(again.wall, cached_cpu + cpu_seconds())
    return Sample(
        epoch=EpochMetrics.mean([each.metrics for each in timed]),
        etl_alone=None if etl_alone is None else etl_alone.wall,
        stalls=[each.stalls.tolist() for each in timed],
        compute_alone=compute_alone,
        harness=_harness_seconds(resident[0], compute.no_op),
        cpu_seconds=noise.own_seconds / len(timed),
        read_nbytes=round(read / len(timed)) + loading.mapped_nbytes,
        peak_memory=memory.nbytes,
        steal=noise.steal,
        other_processes=noise.other_processes,
        throttled=noise.throttled,
        probes=[before, after],
        frequencies=frequencies(),
        affinity=affinity,
        torch_threads=threads,
        device=compute.device,
        misplaced_pages=outside,
        unreported_files=sum(not reports_pages(each) for each in loading.files),
        timeline=loop_spans(last, loading.is_ahead),
        steps=None if loading.meeting is None else StepTimes(last.began.tolist(), last.done.tolist()),
        etl_cpu_seconds=etl_cpu,
        cached_alone=cached,
        loading_waits=waits.times(computing.names),
        transfer=transfer,
        walls=[each.wall.total for each in timed],
    )


def _check_counts(timed: Sequence[EpochTimes], recipe: Recipe) -> None:
    """Raise `ValueError` unless the epochs are equally long: their times are averaged, and the first one is counted.

    As many batches of a part of an epoch may have fewer records, since incomplete ones come in any order.
    """
    unit = "records" if recipe.batches is None else "batches"
    counts = [each.samples if recipe.batches is None else each.batches for each in timed]
    if len(set(counts)) > 1:
        raise ValueError(f"its epochs have different numbers of {unit}: {', '.join(map(str, counts))}")


def first_copies(loading: MeasuredLoader, has_one_layout: bool = False, limit: int | None = None) -> list[Any]:
    """Return copies of first batches of a loader: one, or if their layouts differ, several up to `RESIDENT_NBYTES`.

    There are at most `limit`, the batches that are taken of an epoch: it may have many times as many, or no end.
    """
    copies: list[Any] = []
    room = RESIDENT_NBYTES
    with Epochs(loading, limit) as epochs:
        batches = iter(epochs)
        for batch in batches:
            copies.append(copy_of(batch))
            room -= access_of(batch).nbytes
            if room < 0 or has_one_layout or (len(copies) > 1 and layout_of(copies[0]) == layout_of(copies[1])):
                break
        close_loader(batches)
    if not copies:
        raise ValueError("its epoch has no batches")
    return copies[:1] if len(copies) == 2 and layout_of(copies[0]) == layout_of(copies[1]) else copies


def begin_together(loading: MeasuredLoader) -> None:
    """Wait until all ranks have come this far."""
    if loading.meeting is not None:
        loading.meeting.wait()


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


def _compute_alone(step: Step, resident: Sequence[Any], loading: MeasuredLoader, seconds: float) -> float:
    """Return the mean seconds of a step on batches in memory. All ranks take equally many steps."""
    meeting = loading.meeting
    if meeting is None:
        return seconds_of_step(step, resident, seconds)
    chosen = resident[: int(min(meeting.gather(len(resident))))]
    one = max(meeting.gather(seconds_of_step(step, chosen, 0.0)))
    return seconds_of_step(step, chosen, 0.0, max(1, math.ceil(seconds / one)))


def _transfer(compute: Compute, start_up: int) -> Split | None:
    transfers = compute.transfers
    return None if transfers is None else Split(sum(transfers[:start_up]), sum(transfers[start_up:]))


def _harness_seconds(batch: Any, nothing: Step) -> float:
    """Return the overhead of the measuring loop in seconds per batch: wall time that is neither stall nor compute."""
    times = run_epoch(repeat(batch, HARNESS_BATCHES), nothing)
    wall, stall, compute = times.wall, times.stall, times.compute
    return (wall.total - stall.total - compute.total) / times.batches


def torch_threads() -> int:
    """Return torch's compute threads in this process; 0 if it has not loaded torch."""
    torch = sys.modules.get("torch")
    return 0 if torch is None else int(torch.get_num_threads())
