"""Tasks of the measuring processes: check, time and trace a candidate, and write its store. Imports torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from etl.comparison.compute import Simulated, Training, is_on_device, make_compute
from etl.comparison.loader_clocks import WatchedLoader
from etl.comparison.prediction import (
    CHECKED_STEPS,
    HARNESS_BATCHES,
    MIN_STEPS,
    RESIDENT_NBYTES,
    SPLIT_WARM_UP_BATCHES,
    TIMELINE_BATCHES,
    WARM_UP_BATCHES,
    compute_seconds,
)
from etl.comparison.rounds import seconds_per_batch, take_trials
from etl.comparison.samples import CheckedEpoch, LoadingSample, Sample, Spans, Trial, Trials, WrittenStore
from etl.comparison.settings import Candidate, Threads
from etl.comparison.workload import Workload, source_files
from etl.iterators import BatchIterator, SyntheticIterator
from etl.loading.batch import Batch
from etl.loading.batch_plan import Loader
from etl.measuring.arrays import digest_of, page_count, record_digests, touch
from etl.measuring.clock import EpochTimes, Step, run_epoch, seconds_of_step
from etl.measuring.noise import NoiseWatch, frequencies, probe_speed
from etl.measuring.page_cache import (
    absent_pages,
    drop_from_page_cache,
    pages_outside,
    read_into_page_cache,
    release_pages,
    reports_pages,
)
from etl.measuring.process_tree import PeakMemory, read_nbytes
from etl.runtime import GcPolicy, HeapPolicy, ThreadPolicy
from etl.training.backends.tensors import map_batch

if TYPE_CHECKING:
    from typing_extensions import Self


def check_epoch(workload: Workload, candidate: Candidate, compute_threads: int, trains: bool) -> CheckedEpoch:
    """Run one untimed epoch: digest its batches, watch its memory, and train on the first of them.

    Parameters
    ----------
    workload : Workload
        The work.
    candidate : Candidate
        The way to load.
    compute_threads : int
        Threads of compute, the same for all candidates: floating-point sums depend on the number of threads.
    trains : bool
        Train on the first batches.
    """
    threads = workload.threads(candidate, is_on_device(workload.settings))
    digests: list[str] = []
    records: list[str] = []
    absent = pages = samples = 0
    compute: Training | Simulated | None = None
    with ThreadPolicy(compute_threads), Epochs(workload, candidate, threads) as epochs:
        epochs.prepare(workload.files(candidate))
        with PeakMemory() as memory:
            for batch in epochs.iterator:
                touch(batch)
                samples += len(batch)
                pages += page_count(batch)
                if compute is None and trains:
                    compute = make_compute(workload, batch)
                absent += sum(absent_pages(array) for array in batch.arrays())
                if compute is not None and len(digests) < CHECKED_STEPS:
                    compute.step(batch)
                digests.append(digest_of(batch))
                records += record_digests(batch)
                del batch
    return CheckedEpoch(
        digests=digests,
        records=records,
        samples=samples,
        score=None if compute is None else compute.score,
        weights=None if compute is None else compute.weights,
        pages_touched=pages,
        pages_absent=absent,
        peak_memory=memory.nbytes,
    )


def take_sample(
    workload: Workload, candidate: Candidate, policies: Sequence[HeapPolicy | GcPolicy], with_etl_alone: bool
) -> Sample:
    """Take one sample of all metrics of a candidate.

    A new process is slow until its allocators, caches and thread pools are as in the middle of an epoch, so a few
    batches warm it up before anything is timed.

    Parameters
    ----------
    workload : Workload
        The work.
    candidate : Candidate
        The way to load.
    policies : sequence of HeapPolicy and GcPolicy
        Active runtime policies, whose effect is audited.
    with_etl_alone : bool
        Also time an epoch of loading alone.
    """
    files = workload.files(candidate)
    threads = workload.threads(candidate, is_on_device(workload.settings))
    with ThreadPolicy(threads.compute) as thread_policy, Epochs(workload, candidate, threads) as epochs:
        compute, resident = _warm_up(workload, epochs.iterator)
        alone = seconds_of_step(compute.step, resident, compute_seconds(workload.settings.budget_seconds), MIN_STEPS)
        loading: EpochTimes | None = None
        outside = 0
        if with_etl_alone:
            outside += epochs.prepare(files)
            loading = run_epoch(epochs.iterator, None)
        harness = _harness_seconds(resident[0], compute.no_op)
        probe = probe_speed()
        outside += epochs.prepare(files)
        read = read_nbytes()
        with NoiseWatch() as noise:
            times = run_epoch(epochs.iterator, compute.step)
        read = read_nbytes() - read
        return Sample(
            epoch=times.metrics,
            etl_alone=None if loading is None else loading.wall,
            compute_alone=alone,
            harness=harness,
            cpu_seconds=noise.own_seconds,
            read_nbytes=read + _mapped_nbytes(workload, candidate),
            steal=noise.steal,
            other_processes=noise.other_processes,
            speed_probe=probe,
            frequencies=frequencies(),
            affinity=sorted(os.sched_getaffinity(0)),
            torch_threads=torch.get_num_threads(),
            device=compute.device,
            misplaced_pages=outside,
            unreported_files=sum(not reports_pages(each) for each in files),
            timeline=_loop_spans(times, candidate.is_ahead),
            runtime=[policy.audit() for policy in (*policies, thread_policy)],
        )


def try_splits(workload: Workload, candidate: Candidate, seconds: float) -> Trials:
    """Train on a few batches with each CPU split, in turns.

    All trials run in this process and train the same model. They only rank the splits: samples come from fresh
    processes.

    Parameters
    ----------
    workload : Workload
        The work.
    candidate : Candidate
        The way to load.
    seconds : float
        Approximate limit for all trials together.
    """
    deadline = time.perf_counter() + seconds
    files = workload.files(candidate)
    splits = workload.splits(candidate, is_on_device(workload.settings))
    with ExitStack() as entered:
        epochs = {split: entered.enter_context(Epochs(workload, candidate, split)) for split in splits}
        compute = make_compute(workload, _copy_of_first(epochs[splits[0]].iterator))

        def run(split: Threads, batches: int) -> float:
            epochs[split].prepare(files)
            with ThreadPolicy(split.compute):
                times = run_epoch(_FirstBatches(epochs[split].iterator, batches), compute.step)
            epochs[split].release()
            return seconds_per_batch(times, workload.settings.prefetch_size)

        for split in splits:
            run(split, SPLIT_WARM_UP_BATCHES)
        trials = take_trials(
            splits,
            run,
            max_batches=-(-len(workload.records) // workload.settings.batch_size),
            deadline=deadline,
            seed=workload.settings.seed,
        )
    return Trials([Trial(split, each) for split, each in trials.items()])


def take_loading_sample(workload: Workload, candidate: Candidate) -> LoadingSample:
    """Take one sample of loading alone."""
    threads = workload.threads(candidate, is_on_device(workload.settings))
    files = workload.files(candidate)
    with ThreadPolicy(threads.compute), Epochs(workload, candidate, threads) as epochs:
        with _partial_epoch(epochs.iterator) as batches:
            next(batches)
        outside = epochs.prepare(files)
        times = run_epoch(epochs.iterator, None)
    return LoadingSample(times.wall, outside)


def trace_epoch(workload: Workload, candidate: Candidate) -> Spans:
    """Return the spans of waiting, compute and loading in the first batches of an epoch.

    This epoch is no sample, since it takes time to record which thread loads what.
    """
    threads = workload.threads(candidate, is_on_device(workload.settings))
    watched: list[WatchedLoader] = []

    def watch(loader: Loader) -> WatchedLoader:
        watched.append(WatchedLoader(loader))
        return watched[-1]

    with ThreadPolicy(threads.compute), Epochs(workload, candidate, threads, watch) as epochs:
        compute, _ = _warm_up(workload, epochs.iterator)
        epochs.prepare(workload.files(candidate))
        for each in watched:
            each.reset()
        times = run_epoch(_FirstBatches(epochs.iterator, TIMELINE_BATCHES), compute.step)
    started, last = times.started, float(times.done[-1])
    names: dict[int, int] = {}
    loads = [
        (names.setdefault(span.thread, len(names)), span.start - started, min(span.end, last) - started, span.batch)
        for each in watched
        for span in each.merged()
        if span.start < last
    ]
    return replace(_loop_spans(times, is_ahead=True), loads=loads)


def _loop_spans(times: EpochTimes, is_ahead: bool) -> Spans:
    """Return the spans of stalls and steps in the first batches.

    If the strategy does not load ahead, the training loop itself loads, from asking for a batch until it has it.
    """
    asked, stalled, loaded, began, done = (
        (each[:TIMELINE_BATCHES] - times.started).tolist()
        for each in (times.asked, times.stalled, times.loaded, times.began, times.done)
    )
    loads = [] if is_ahead else [(0, *span, batch) for batch, span in enumerate(zip(asked, loaded, strict=True))]
    return Spans(list(zip(stalled, loaded, strict=True)), list(zip(began, done, strict=True)), loads)


class Epochs:
    """A context manager around the iterator of a candidate, which prepares the page cache before each epoch.

    Parameters
    ----------
    workload : Workload
        The work.
    candidate : Candidate
        The way to load.
    threads : Threads
        Its CPU split.
    watch : callable, optional
        Wraps the loader of the iterator.
    """

    def __init__(
        self,
        workload: Workload,
        candidate: Candidate,
        threads: Threads,
        watch: Callable[[Loader], Loader] | None = None,
    ) -> None:
        self._make: Callable[[], BatchIterator] = lambda: workload.iterator(candidate, threads, watch)
        self._cold = workload.settings.cache == "cold"
        self.iterator = self._make()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.iterator.close()

    def prepare(self, files: list[Path]) -> int:
        """Prepare epoch 0: read `files` into the page cache or, for cold epochs, drop them from it.

        Return the number of pages for which this failed.
        """
        if not self._cold:
            self.iterator.set_epoch(0)
            outside = pages_outside(files)
            if outside or not all(map(reports_pages, files)):
                read_into_page_cache(files)
                outside = pages_outside(files)
            return outside
        self.release()
        self.iterator = self._make()
        return drop_from_page_cache(files)

    def release(self) -> None:
        """If epochs are cold, close the iterator, its store and its worker processes until `prepare` makes a new one.

        While this process maps the files, no process can drop their pages from the page cache.
        """
        if self._cold:
            self.iterator.close()
            release_pages()


class _FirstBatches:
    """The first batches of each epoch of an iterator."""

    def __init__(self, iterator: BatchIterator, count: int) -> None:
        self._iterator = iterator
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._iterator, start=1):
            yield batch
            del batch
            if number == self._count:
                return


def _resident_batches(iterator: BatchIterator) -> list[Batch]:
    """Return copies of the first batches, up to `RESIDENT_NBYTES`: an iterator reuses the memory of its batches."""
    batches: list[Batch] = []
    room = RESIDENT_NBYTES
    for batch in iterator:
        room -= batch.nbytes
        if batches and room < 0:
            break
        batches.append(map_batch(batch, np.array))
        del batch
    iterator.set_epoch(0)
    return batches


def _copy_of_first(iterator: BatchIterator) -> Batch:
    with _partial_epoch(iterator) as batches:
        return map_batch(next(batches), np.array)


def _warm_up(workload: Workload, iterator: BatchIterator) -> tuple[Training | Simulated, list[Batch]]:
    """Train on the first batches. Return the compute, and copies of batches: several if their shapes may differ."""
    with _partial_epoch(iterator) as batches:
        batch = next(batches)
        first = map_batch(batch, np.array)
        compute = make_compute(workload, first)
        compute.step(batch)
        for batch in islice(batches, WARM_UP_BATCHES - 1):
            compute.step(batch)
        del batch
    return compute, [first] if first.features_mask is None else _resident_batches(iterator)


@contextmanager
def _partial_epoch(iterator: BatchIterator) -> Iterator[Iterator[Any]]:
    """Yield the batches of an epoch that is abandoned before its end; then reset `iterator` to the same epoch."""
    epoch = iterator.epoch
    batches: Any = iter(iterator)
    try:
        yield batches
    finally:
        batches.close()
        iterator.set_epoch(epoch)


def _harness_seconds(batch: Batch, nothing: Step) -> float:
    """Return the overhead of the measuring loop in seconds per batch: wall time that is neither stall nor compute."""
    times = run_epoch(SyntheticIterator.repeating(batch, HARNESS_BATCHES), nothing)
    wall, stall, compute = times.wall, times.stall, times.compute
    return (wall.total - stall.total - compute.total) / times.batches


def _mapped_nbytes(workload: Workload, candidate: Candidate) -> int:
    """Return the bytes of memory-mapped files that an epoch reads: the system does not count them as reads."""
    if not candidate.is_presaved:
        return 0
    with workload.open(candidate) as store:
        return store.nbytes if store.is_mapped else 0


def write_store(workload: Workload, format: str, stage: str, jobs: int) -> WrittenStore:
    """Write a store of the selected records, and return its cost.

    The files of the records are first read into the page cache or, in a cold comparison, dropped from it. Only the
    writing is timed.

    Parameters
    ----------
    workload : Workload
        The work.
    format : str
        Format of the store.
    stage : str
        Stage after which records are presaved.
    jobs : int
        Worker processes that write.
    """
    files = source_files(workload.settings.source, workload.records)
    if workload.settings.cache == "cold":
        drop_from_page_cache(files)
    else:
        read_into_page_cache(files)
    started = time.perf_counter()
    with workload.write(format, stage, jobs) as store:
        seconds = time.perf_counter() - started
        return WrittenStore(seconds, store.nbytes, len(store))
