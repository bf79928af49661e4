"""The comparison's own strategies in the process that measures them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from etl.comparison.candidates import Candidate, StoreKind, Threads
from etl.comparison.compute import is_on_device, make_compute
from etl.comparison.epochs import Epochs, Loading, first_batches, partial_epoch
from etl.comparison.loader_clocks import WatchedLoader
from etl.comparison.measure import TIMELINE_BATCHES, compute_seconds, loop_spans, warm_up
from etl.comparison.samples import Spans, Trial, Trials, WrittenStore
from etl.comparison.trials import seconds_per_batch, take_trials
from etl.comparison.workload import Workload, source_files
from etl.loading.batch_plan import Loader
from etl.measuring.arrays import copy_of
from etl.measuring.clock import run_epoch
from etl.measuring.meeting import Meeting
from etl.measuring.page_cache import drop_from_page_cache, read_into_page_cache
from etl.runtime import ThreadPolicy

# Batches before the trials of each CPU split.
WARM_UP_BATCHES = 2


def loading_of(
    workload: Workload,
    candidate: Candidate,
    threads: Threads,
    watch: Callable[[Loader], Loader] | None = None,
    meeting: Meeting | None = None,
) -> Loading:
    """Return how `candidate` loads.

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
    meeting : Meeting, optional
        Where ranks meet that load at the same time.
    """

    def make() -> Iterable[Any]:
        return workload.collated(workload.iterator(candidate, threads, watch))

    return Loading(
        make=make,
        make_compute=functools.partial(make_compute, workload),
        files=workload.files(candidate),
        is_cold=workload.settings.cache == "cold",
        compute_seconds=compute_seconds(workload.settings.budget_seconds),
        can_rewind=True,
        short_warm_up=not any(each.is_foreign for each in workload.candidates()),
        records=len(workload.records),
        is_ahead=candidate.is_ahead,
        mapped_nbytes=_mapped_nbytes(workload, candidate),
        meeting=meeting,
    )


def _mapped_nbytes(workload: Workload, candidate: Candidate) -> int:
    """Return the bytes of memory-mapped files that an epoch reads: the system does not count them as reads."""
    if not candidate.is_presaved:
        return 0
    with workload.open(candidate) as store:
        return store.nbytes // workload.rank.world_size if store.is_mapped else 0


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
    splits = workload.splits(candidate, is_on_device(workload.settings))
    with ExitStack() as entered:
        epochs = {split: entered.enter_context(Epochs(loading_of(workload, candidate, split))) for split in splits}
        with partial_epoch(epochs[splits[0]]) as batches:
            compute = make_compute(workload, copy_of(next(batches)))

        def run(split: Threads, batches: int) -> float:
            epochs[split].prepare()
            with ThreadPolicy(split.compute):
                times = run_epoch(_FirstBatches(epochs[split], batches), compute.step)
            epochs[split].release()
            return seconds_per_batch(times, workload.prefetch_size(candidate))

        for split in splits:
            run(split, WARM_UP_BATCHES)
        trials = take_trials(
            splits,
            run,
            max_batches=-(-len(workload.records) // workload.step_records),
            deadline=deadline,
            seed=workload.settings.seed,
        )
    return Trials([Trial(split, each) for split, each in trials.items()])


def trace_epoch(workload: Workload, candidate: Candidate) -> Spans:
    """Return the spans of waiting, compute and loading in the first batches of an epoch.

    This epoch is no sample, since it takes time to record which thread loads what.
    """
    threads = workload.threads(candidate, is_on_device(workload.settings))
    watched: list[WatchedLoader] = []

    def watch(loader: Loader) -> WatchedLoader:
        watched.append(WatchedLoader(loader))
        return watched[-1]

    loading = loading_of(workload, candidate, threads, watch, workload.rank.meet())
    with ThreadPolicy(threads.compute), Epochs(loading) as epochs:
        compute, _ = warm_up(epochs, loading)
        epochs.prepare()
        for each in watched:
            each.reset()
        times = run_epoch(_FirstBatches(epochs, TIMELINE_BATCHES), compute.step)
    started, last = times.started, float(times.done[-1])
    names: dict[int, int] = {}
    loads = [
        (names.setdefault(span.thread, len(names)), span.start - started, min(span.end, last) - started, span.batch)
        for each in watched
        for span in each.merged()
        if span.start < last
    ]
    return replace(loop_spans(times, is_ahead=True), loads=loads)


class _FirstBatches:
    """The first batches of each epoch of a loader."""

    def __init__(self, epochs: Epochs, count: int) -> None:
        self._epochs = epochs
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        return first_batches(self._epochs, self._count)


def write_store(workload: Workload, store: Mapping[str, Any], jobs: int) -> WrittenStore:
    """Write a store of the selected records, and return its cost.

    The files of the records are first read into the page cache or, in a cold comparison, dropped from it. Only the
    writing is timed.

    Parameters
    ----------
    workload : Workload
        The work.
    store : dict
        JSON values of its `StoreKind`.
    jobs : int
        Worker processes that write.
    """
    files = source_files(workload.settings.source, workload.records)
    if workload.settings.cache == "cold":
        drop_from_page_cache(files)
    else:
        read_into_page_cache(files)
    started = time.perf_counter()
    with workload.write(StoreKind.from_json(store), jobs) as written:
        seconds = time.perf_counter() - started
        return WrittenStore(seconds, written.nbytes, len(written))
