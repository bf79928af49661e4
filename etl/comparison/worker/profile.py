"""The profile of the raw pipeline, from which the time of every strategy is predicted."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etl.comparison.request.answers import PipelineProfile, SplitProfile, StageProfile
from etl.comparison.request.candidates import CpuSplit
from etl.comparison.request.scenario import WhatIf
from etl.comparison.request.work import Work
from etl.comparison.worker.make_compute import make_compute
from etl.comparison.worker.untimed import prepare_files
from etl.loading.loader_clocks import RecordRun, StageClock
from etl.measuring.arrays import copy_of
from etl.measuring.clock import seconds_of_step
from etl.measuring.noise import least_seconds
from etl.runtime import ThreadPolicy
from etl.stages.fields import flatten

# Measurements take turns, so that a slow second of the machine affects all of them. Together they take at most this
# share of the time budget, and each turn at most this long.
TURNS = 3
TURNS_SHARE, MAX_TURN_SECONDS = 1 / 10, 0.4
PROFILED_RECORDS, SIZED_RECORDS = 512, 8
COPIED_NBYTES = 64 << 20


def profile_raw_pipeline(work: Work, given: Sequence[CpuSplit], counts: Sequence[int]) -> PipelineProfile:
    """Measure each stage, compute alone with each number of threads, and both at once for each CPU split."""
    # So few records that their files are read repeatedly, like files that stay in memory between epochs.
    work.select(min(PROFILED_RECORDS, len(work.source)))
    files, cache = work.source_files(), work.settings.cache
    prepare_files(files, cache)
    with work.raw() as raw:
        first = copy_of(next(iter(raw)))
        batch = work.collate(first)
        compute = make_compute(work, batch)
        splits = [_SplitTimes(each) for each in given]
        # Two threads share one CPU in time, and each loses what the other leaves in its caches.
        is_on_one = compute.device == "cpu" and any(WhatIf.parse(each).cpus == 1 for each in work.settings.what_if)
        one_cpu = [_SplitTimes(CpuSplit(1, 1), cpus=1)] if is_on_one else []
        alone: dict[int, list[float]] = {threads: [] for threads in dict.fromkeys([*counts, *(1 for _ in one_cpu)])}
        shares = TURNS * (1 + len(alone) + 2 * len([*splits, *one_cpu]))
        seconds = min(MAX_TURN_SECONDS, work.settings.budget_seconds * TURNS_SHARE / shares)
        records = RecordRun(raw.loader, len(work.records), work.settings.batch_size, work.settings.seed)
        clock = StageClock(work.stages)
        for threads in alone:  # untimed: the first step with more threads starts them
            with ThreadPolicy(threads):
                compute.step(batch)
        records.load_for(seconds / 2, StageClock(work.stages))
        for _ in range(TURNS):
            prepare_files(files, cache)
            records.load_for(seconds, clock)
            for threads, steps in alone.items():
                with ThreadPolicy(threads):
                    steps.append(seconds_of_step(compute.step, [batch], seconds))
            for split in (*splits, *one_cpu):
                rate, _ = _rate_during(work, records, split.threads.loading, lambda: time.sleep(seconds))
                with ThreadPolicy(split.threads.compute), _bound_to(split.cpus):
                    beside, step = _rate_during(
                        work, records, split.threads.loading, lambda: seconds_of_step(compute.step, [batch], seconds)
                    )
                split.rates.append(rate)
                split.loading_slower.append(rate / beside)
                split.compute_slower.append(step / alone[split.threads.compute][-1])
    return PipelineProfile(
        stages=[
            StageProfile(name, seconds, nbytes)
            for (name, seconds), nbytes in zip(clock.seconds_per_record(), _stage_nbytes(work), strict=True)
        ],
        compute_seconds={str(threads): statistics.median(seconds) for threads, seconds in alone.items()},
        splits=[each.profile() for each in splits],
        copy_bytes_per_second=_copy_rate(first.nbytes // first.records),
        device=compute.device,
        on_one_cpu=one_cpu[0].profile() if one_cpu else None,
    )


@contextmanager
def _bound_to(cpus: int | None) -> Iterator[None]:
    """Bind this thread, and those that it starts meanwhile, to the first of its CPUs; to all of them if None."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, sorted(before)[:cpus])
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class _SplitTimes:
    """Measurements of one CPU split, one value per turn; loading and compute share `cpus` CPUs, or all if None."""

    threads: CpuSplit
    rates: list[float] = field(default_factory=list)
    loading_slower: list[float] = field(default_factory=list)
    compute_slower: list[float] = field(default_factory=list)
    cpus: int | None = None

    def profile(self) -> SplitProfile:
        """Return the medians of all turns."""
        return SplitProfile(
            compute_threads=self.threads.compute,
            loading_threads=self.threads.loading,
            records_per_second=statistics.median(self.rates),
            compute_slowdown=max(1.0, statistics.median(self.compute_slower)),
            loading_slowdown=max(1.0, statistics.median(self.loading_slower)),
        )


def _rate_during(work: Work, records: RecordRun, threads: int, busy: Callable[[], Any]) -> tuple[float, Any]:
    """Return the records per second that `threads` threads load while `busy` runs, and its result.

    If the source is not thread-safe, only the calling thread loads.
    """
    if not work.records.thread_safe:
        clock, started = StageClock(work.stages), time.perf_counter()
        with ThreadPoolExecutor(1) as other:
            working = other.submit(busy)
            working.add_done_callback(lambda _: clock.stop())
            records.load(clock)
        return clock.records / (time.perf_counter() - started), working.result()
    clocks = [StageClock(work.stages) for _ in range(max(1, threads))]
    started = time.perf_counter()
    with ThreadPoolExecutor(len(clocks)) as workers:
        loading = [workers.submit(records.load, clock) for clock in clocks]
        try:
            result = busy()
        finally:
            for clock in clocks:
                clock.until = 0.0
    for each in loading:
        each.result()  # raises the exception of loading, if any
    return sum(clock.records for clock in clocks) / (time.perf_counter() - started), result


def _stage_nbytes(work: Work) -> list[float]:
    """Return the mean bytes of a record's features after each stage."""
    chosen = [work.records[index] for index in range(min(SIZED_RECORDS, len(work.records)))]
    means = []
    for stage in work.stages:
        until, _ = work.pipeline.split(stage)
        done = [until(record) for record in chosen]
        sizes = [
            sum(np.asarray(value).nbytes for name, value in flatten(record).items() if name.startswith("features"))
            for record in done
        ]
        means.append(float(np.mean(sizes)))
    return means


def _copy_rate(row_nbytes: int) -> float:
    """Return the bytes per second at which one thread copies random rows of `row_nbytes`, which no CPU cache holds."""
    rows = max(2, COPIED_NBYTES // max(1, row_nbytes))
    source = np.ones((rows, max(1, row_nbytes)), np.uint8)
    target = np.ones_like(source)
    order = np.random.default_rng(0).permutation(rows)
    return source.nbytes / least_seconds(lambda: np.take(source, order, axis=0, out=target, mode="clip"), 3)
