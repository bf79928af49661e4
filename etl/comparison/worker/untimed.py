"""Measurements of one way to load, in the process that loads, beside its samples: a checked epoch and short tries.

The environment of another library's loader needs no more than numpy, psutil and xxhash for this module.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from etl.comparison.request.answers import CheckedEpoch, LoadingSample, TriedLoader
from etl.comparison.request.epoch_content import may_hold
from etl.comparison.worker.epoch_recorder import EpochRecorder
from etl.measuring.arrays import (
    Access,
    access_of,
    copy_of,
    memory_of,
    page_count,
    record_digests,
    touch,
    views_in,
)
from etl.measuring.clock import run_epoch, seconds_of_step
from etl.measuring.device import peak_device_memory
from etl.measuring.epochs import Compute, Epochs, MeasuredLoader, close_loader
from etl.measuring.meeting import Meeting
from etl.measuring.page_cache import absent_pages, drop_from_page_cache, read_into_page_cache
from etl.measuring.process_tree import PeakMemory, mapped_nbytes
from etl.measuring.sample import begin_together, first_copies, torch_threads
from etl.measuring.structure import count_batches, record_count
from etl.strategies.torch_loader import given_torch_settings, torch_settings

# Few steps are enough to compare losses: equal weights trained on equal batches have equal losses after any number.
CHECKED_STEPS = 2
# A loader that tells its length is tried for so long.
KNOWN_SECONDS = 0.5
# An epoch that has this many times its records does not end, or repeats them.
ENDLESS = 2


def try_loader(loading: MeasuredLoader, limit: int | None, step_records: int, seconds: float) -> TriedLoader:
    """Load for a few seconds, and compute: how long an epoch takes is not known yet.

    Parameters
    ----------
    limit : int or None
        Batches that are an epoch; None for all that the loader has.
    seconds : float
        Loading ends after this time, or with the first epoch; sooner if the loader tells the length of its epochs.
    """
    with Epochs(loading, limit) as epochs:
        length = count_batches(epochs.loader)
        batches, ended = iter(epochs), False
        first = next(batches, None)
        if first is None:
            raise ValueError("its first epoch has no batches")
        touch(first)
        copied, samples, count = copy_of(first), record_count(first), 1
        del first
        since = time.perf_counter()
        if length is not None:
            seconds = min(seconds, KNOWN_SECONDS)
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
        read_ahead, workers = _read_ahead(epochs.loader), _workers(epochs.loader)
        cpus = len(os.sched_getaffinity(0))
        settings = torch_settings(epochs.loader, cpus)
        given = given_torch_settings(epochs.loader)
    compute = loading.make_compute(copied)
    compute.step(copied)
    epoch_batches = count if ended else length
    return TriedLoader(
        seconds_per_batch=rest / max(1, count - 1),
        batches=count,
        samples=samples,
        has_ended=ended,
        epoch_batches=epoch_batches,
        read_ahead=read_ahead,
        workers=workers,
        has_selected_records=epoch_batches is not None
        and loading.records is not None
        and may_hold(epoch_batches, loading.records, step_records, max(cpus, workers)),
        compute_seconds=seconds_of_step(compute.step, [copied], 0.0),
        settings={name: list(values) for name, values in settings.items()},
        given={name: given[name] for name in settings},
    )


def _read_ahead(loader: Any) -> int:
    """Return the number of batches that `loader` may read ahead: what a torch DataLoader says, otherwise a guess."""
    if not isinstance(getattr(loader, "num_workers", None), int):
        return 2 * len(os.sched_getaffinity(0)) + 1
    factor = getattr(loader, "prefetch_factor", None)
    return _workers(loader) * (factor if isinstance(factor, int) else 1)


def _workers(loader: Any) -> int:
    """Return the processes of a torch DataLoader, which deliver a batch each at the same time; 0 of another loader."""
    workers = getattr(loader, "num_workers", None)
    return workers if isinstance(workers, int) else 0


def check_epoch(
    loading: MeasuredLoader,
    limit: int | None,
    trains: bool,
    arrays_file: str,
    again: str = "",
    time_threads: Callable[[Compute, Any], Mapping[str, float]] | None = None,
) -> CheckedEpoch:
    """Run one untimed epoch: digest its batches, watch its memory, and train on the first of them.

    Parameters
    ----------
    time_threads : callable, optional
        Called with the compute and a batch at the end; returns the seconds of a step by number of threads.
    """
    content = EpochRecorder()
    absent = pages = 0
    unread = ""
    mapped: dict[str, int] = {}
    compute: Compute | None = None
    score: float | None = None
    first: Any = None
    waits: list[float] = []
    step_seconds = 0.0
    started = time.perf_counter()
    with Epochs(loading, limit) as epochs:
        made = time.perf_counter() - started
        epochs.prepare()
        with PeakMemory() as memory:
            for batch in _ended(epochs, loading, waits):
                touch(batch)
                pages += page_count(batch)
                unread = unread or describe_unread(access_of(batch))
                absent += sum(absent_pages(each) for each in map(memory_of, views_in(batch)) if each.ndim == 1)
                content.add(batch)  # before a user's step, which may change the batch
                if first is None:
                    first = copy_of(batch)
                if trains and len(content.digests) <= CHECKED_STEPS and _has_each_a_batch(loading.meeting):
                    compute = compute or loading.make_compute(first)
                    step_seconds = -time.perf_counter()
                    compute.step(batch)
                    score = compute.score  # which waits for a device
                    step_seconds += time.perf_counter()
            if loading.meeting is not None:
                mapped = mapped_nbytes()
                if trains:  # ranks that have more batches wait for this one
                    for _ in range(len(content.digests), CHECKED_STEPS):
                        loading.meeting.gather(0.0)
        if first is None:
            raise ValueError("its epoch has no batches")
        repeated = _second_epoch(epochs, loading, again)
        workers, threads = _workers(epochs.loader), torch_threads()
    return CheckedEpoch(
        content=content.finish(arrays_file),
        reshuffles=None if sorted(repeated) != sorted(content.records) else repeated != content.records,
        score=score,
        weights=None if compute is None else compute.weights,
        pages_touched=pages,
        pages_absent=absent,
        unread=unread,
        peak_memory=memory.nbytes,
        mapped=mapped,
        peak_device_memory=peak_device_memory(),
        make_seconds=made,
        first_seconds=made + waits[0],
        batch_seconds=statistics.median(waits[1:] or waits) + step_seconds,
        device="none" if compute is None else compute.device,
        compute_seconds={} if compute is None or time_threads is None else time_threads(compute, first),
        workers=workers,
        torch_threads=threads,
    )


def _second_epoch(epochs: Epochs, loading: MeasuredLoader, again: str) -> list[str]:
    """Return the digests of the records of the next epoch, if it is `again` to be looked at, or of its first batch."""
    found: list[str] = []
    if again:
        batches = _ended(epochs, loading, [])
        for batch in batches:
            found += record_digests(batch)
            if again == "begun":
                break
        batches.close()
        if not found:
            raise ValueError(
                "its second epoch has no batches: return an object that begins another epoch each time it is iterated"
            )
    return found


def _has_each_a_batch(meeting: Meeting | None) -> bool:
    """Return whether all ranks have a batch, as this one has: they would wait forever for one that has not."""
    return meeting is None or all(meeting.gather(1.0))


def describe_unread(access: Access) -> str:
    """Say which arrays of a batch `touch` does not read, and why; return nothing if it reads all."""
    found = [f"{nbytes / 1e6:,.1f} MB on {device} were waited for" for device, nbytes in access.on_device.items()]
    found += [
        f"{nbytes / 1e6:,.1f} MB of {kind} were not read, because only a copy would show what they contain"
        for kind, nbytes in access.unread.items()
    ]
    return ", ".join(found)


def _ended(epochs: Epochs, loading: MeasuredLoader, waits: list[float]) -> Generator[Any, None, None]:
    """Yield the batches of an epoch, and append to `waits` the seconds that each was waited for.

    Raise `ValueError` if it does not end after twice its records.
    """
    max_samples = None if loading.records is None else ENDLESS * loading.records
    samples = 0
    asked = time.perf_counter()
    batches = iter(epochs)
    try:
        for batch in batches:
            waits.append(time.perf_counter() - asked)
            samples += record_count(batch)
            yield batch
            if max_samples is not None and samples > max_samples:
                raise ValueError(
                    f"its epoch does not end: it gave {samples:,} records, and the source has {loading.records:,}; "
                    "with --epoch-batches N an epoch is N batches"
                )
            asked = time.perf_counter()
    finally:
        close_loader(batches)


def prepare_files(files: Sequence[Path], cache: str) -> None:
    """Read `files` into the page cache or, if it is to be cold, drop them from it."""
    if cache == "cold":
        drop_from_page_cache(files)
    else:
        read_into_page_cache(files)


def take_loading_sample(loading: MeasuredLoader) -> LoadingSample:
    """Take one sample of loading alone."""
    first_copies(loading)
    with Epochs(loading) as epochs:
        outside = epochs.prepare()
        begin_together(loading)
        times = run_epoch(epochs, None)
    return LoadingSample(times.wall, outside)
