"""The comparison's own strategies in the process that measures them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import presave
from etl.comparison.request.answers import WrittenStore
from etl.comparison.request.candidates import Candidate, CpuSplit, StoreKind
from etl.comparison.request.work import Work
from etl.comparison.worker.make_compute import make_compute
from etl.comparison.worker.untimed import prepare_files
from etl.loading.batch_plan import Loader
from etl.loading.loader_clocks import WatchedLoader
from etl.loading.records import Records
from etl.measuring.clock import run_epoch, seconds_of_step
from etl.measuring.epochs import Compute, Epochs, MeasuredLoader
from etl.measuring.sample import TIMELINE_BATCHES, WARM_UP_STEPS, Spans, first_copies, loop_spans
from etl.runtime import ThreadPolicy

# Compute with each number of threads is timed for so long.
STEPS_SECONDS = 0.1


def loading_of(
    work: Work,
    candidate: Candidate,
    threads: CpuSplit,
    watch: Callable[[Loader], Loader] | None = None,
) -> MeasuredLoader:
    """Return how `candidate` loads. Call it once in a process: it opens the meeting of the ranks."""

    def make() -> Iterable[Any]:
        return work.collated(work.iterator(candidate, threads, watch))

    return MeasuredLoader(
        make=functools.partial(StartedInEpoch, make) if candidate.worker_processes else make,
        make_compute=functools.partial(make_compute, work),
        files=work.files(candidate),
        is_cold=work.settings.cache == "cold",
        can_rewind=True,
        records=len(work.records),
        is_ahead=candidate.is_ahead,
        mapped_nbytes=_mapped_nbytes(work, candidate),
        meeting=work.rank.meet(),
    )


class StartedInEpoch:
    """An iterator that is made when its first epoch begins, so that its processes start there, as a DataLoader's do."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._iterator: Any = None
        self._epoch = 0

    def __iter__(self) -> Iterator[Any]:
        if self._iterator is None:
            self._iterator = self._make()
            self._iterator.set_epoch(self._epoch)
        return iter(self._iterator)

    def set_epoch(self, epoch: int) -> None:
        """Begin with `epoch` when iterated next."""
        self._epoch = epoch
        if self._iterator is not None:
            self._iterator.set_epoch(epoch)

    def close(self) -> None:
        if self._iterator is not None:
            self._iterator.close()


def _mapped_nbytes(work: Work, candidate: Candidate) -> int:
    """Return the bytes of memory-mapped files that an epoch reads: the system does not count them as reads."""
    if not candidate.is_presaved:
        return 0
    with work.open(candidate) as store:
        return store.nbytes // work.rank.world_size if store.is_mapped else 0


def time_threads(counts: Sequence[int], compute: Compute, batch: Any) -> dict[str, float]:
    """Return the seconds of a step with each number of compute threads, while nothing else runs."""
    found = {}
    for each in counts:
        with ThreadPolicy(each):
            compute.step(batch)  # untimed: it starts the threads
            found[str(each)] = seconds_of_step(compute.step, [batch], STEPS_SECONDS)
    return found


def trace_epoch(work: Work, candidate: Candidate, threads: CpuSplit) -> Spans:
    """Return the spans of waiting, compute and loading in the first batches of an epoch.

    This epoch is not a sample, since it takes time to record which thread loads what.
    """
    watched: list[WatchedLoader] = []

    def watch(loader: Loader) -> WatchedLoader:
        watched.append(WatchedLoader(loader))
        return watched[-1]

    loading = loading_of(work, candidate, threads, watch)
    with ThreadPolicy(threads.compute):
        [first, *_] = first_copies(loading)
        compute = loading.make_compute(first)
        for _ in range(WARM_UP_STEPS):
            compute.step(first)
        watched.clear()
        with Epochs(loading, TIMELINE_BATCHES) as epochs:
            epochs.prepare()
            times = run_epoch(epochs, compute.step)
    started, last = times.started, float(times.done[-1])
    names: dict[int, int] = {}
    loads = [
        (names.setdefault(span.thread, len(names)), span.start - started, min(span.end, last) - started, span.batch)
        for each in watched
        for span in each.merged()
        if span.start < last
    ]
    return replace(loop_spans(times, is_ahead=True), loads=loads)


def write_store(work: Work, store: StoreKind, jobs: int) -> WrittenStore:
    """Write a store of the selected records, and return its cost.

    The files of the records are first read into the page cache or, in a cold comparison, dropped from it. Only the
    writing is timed.
    """
    done, _ = work.pipeline_of(store).split(store.stage)
    options = {} if store.compression is None else {"compression": store.compression}
    records = Records(work.records, done)
    prepare_files(work.source_files(), work.settings.cache)
    started = time.perf_counter()
    with presave.write(work.store_path(store), records, format=store.format, jobs=jobs, options=options) as written:
        seconds = time.perf_counter() - started
        return WrittenStore(seconds, written.nbytes, len(written))
