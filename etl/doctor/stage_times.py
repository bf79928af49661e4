"""The time of each stage alone, with the files in the page cache and with the files only on disk. Imports torch."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etl.comparison.request.work import Work, source_files
from etl.iterators import RawIterator
from etl.loading.loader_clocks import RecordRun, StageClock
from etl.measuring.page_cache import drop_from_page_cache, read_into_page_cache
from etl.training.backends import Backend
from etl.training.backends.tensors import map_batch

SECONDS = 1.0
COPIES = 5


@dataclass(frozen=True)
class StageTime:
    """Milliseconds that a stage takes for one record in one thread.

    `warm` is for files in the page cache, `cold` for files on disk only: None if they cannot be dropped from the cache.
    """

    name: str
    warm: float
    cold: float | None


@dataclass(frozen=True)
class StageTimes:
    """The time of every stage, and the speed of reading the files.

    Attributes
    ----------
    stages : list of StageTime
        The stages in order: reading is first, the copy to the device is last if the backend is known. Writing a record
        into its batch counts for the last stage of the pipeline.
    disk_bytes_per_second : float or None
        Speed of reading the files from disk; None if this process may not drop them from the page cache.
    memory_bytes_per_second : float
        Speed of reading the files from the page cache.
    nbytes : int
        Size of all files together.
    cold_failed : str or None
        Reason why cold times are unknown; None if they are known.
    """

    stages: list[StageTime]
    disk_bytes_per_second: float | None
    memory_bytes_per_second: float
    nbytes: int
    cold_failed: str | None = None

    @property
    def slowest(self) -> StageTime:
        """The stage that takes longest if the files are in the page cache."""
        return max(self.stages, key=lambda each: each.warm)


def time_stages(work: Work, backend: Backend | None) -> StageTimes:
    """Time the stages of `work` for a second with warm and a second with cold files.

    The copy to the device is timed, too, unless there is no `backend`: a user's training step copies batches itself.
    Errors of loading are raised unchanged.
    """
    files = source_files(work.settings.source, work.records)
    nbytes = sum(each.stat().st_size for each in files)
    with work.raw() as raw:
        records = _record_run(work, raw)
        read_into_page_cache(files)
        memory = _rate(files, nbytes)
        warm = _stage_seconds(work, records)
        disk: float | None = None
        cold: list[tuple[str, float]] | None = None
        failed = None
        try:
            if not files:
                raise OSError(f"the files of {work.settings.source} are unknown")
            drop_from_page_cache(files)
            disk = _rate(files, nbytes)
            drop_from_page_cache(files)
            cold = _cold_seconds(work, raw)
        except OSError as error:
            failed = str(error)
        read_into_page_cache(files)
        batch = map_batch(next(iter(raw)), np.array)
    stages = [
        StageTime(name, seconds * 1e3, None if cold is None else cold[index][1] * 1e3)
        for index, (name, seconds) in enumerate(warm)
    ]
    if backend is not None:
        copy = _copy_seconds(backend, batch) / batch.records
        stages.append(StageTime(f"copy to {backend.device}", copy * 1e3, None if cold is None else copy * 1e3))
    return StageTimes(stages, disk, memory, nbytes, failed)


def _record_run(work: Work, raw: RawIterator) -> RecordRun:
    return RecordRun(raw.loader, len(work.records), work.settings.batch_size, work.settings.seed)


def _stage_seconds(work: Work, records: RecordRun) -> list[tuple[str, float]]:
    records.load_for(SECONDS / 4, StageClock(work.stages))
    clock = StageClock(work.stages)
    records.load_for(SECONDS, clock)
    return clock.seconds_per_record()


def _cold_seconds(work: Work, raw: RawIterator) -> list[tuple[str, float]]:
    """Return the seconds of each stage. No record is loaded twice: the second time, its file would be in memory."""
    clock = StageClock(work.stages)
    run = _record_run(work, raw)
    clock.until = time.perf_counter() + SECONDS
    run.load(clock, max_records=len(work.records))
    return clock.seconds_per_record()


def _rate(files: list[Path], nbytes: int) -> float:
    """Return the bytes per second of reading `files` one after the other."""
    started = time.perf_counter()
    read_into_page_cache(files)
    return nbytes / (time.perf_counter() - started)


def _copy_seconds(backend: Backend, batch: Any) -> float:
    times = []
    for _ in range(COPIES):
        started = time.perf_counter()
        backend.put(batch)
        backend.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
