"""The profile of the raw pipeline, from which every strategy's time is predicted. Loads torch."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import MutableSequence
from typing import Any

import numpy as np

from etl.comparison.candidate import READ, Candidate
from etl.comparison.compute import Training, Wait, make_compute, usual_model
from etl.comparison.measure import compute_alone
from etl.comparison.workload import Threads, Workload
from etl.iterators.raw import RawIterator
from etl.loading.loading import Loader, nowhere
from etl.loading.record_loader import READING
from etl.runtime import ThreadPolicy
from etl.several import flatten

# In turns, so that a slow second of the machine meets all of them.
TURNS = 4
SECONDS_A_TURN = 0.35
RECORDS_LOOKED_AT = 8
COPIED_NBYTES = 64 << 20


def profile(workload: Workload) -> dict[str, Any]:
    """Seconds for a record of each stage in one thread, and bytes after it; seconds of compute alone for a batch, by
    number of threads; how loading in threads and compute slow each other down; and how fast memory is copied.
    """
    ahead = workload.threads(Candidate("async-raw"), is_on_device=False)
    raw = RawIterator(
        workload.records,
        workload.pipeline,
        workload.settings.batch_size,
        dtype=workload.settings.dtype,
        padding=workload.padding,
        shuffle=True,
        seed=workload.settings.seed,
    )
    with raw:
        batch = next(iter(raw))
        compute = make_compute(workload, batch)
        if isinstance(compute, Training) and compute.is_on_device:
            ahead = workload.threads(Candidate("async-raw"), is_on_device=True)
        plain = workload.threads(Candidate("raw"), compute.is_on_device)
        slices = _Slices(workload, raw.loader)
        clock = StageClock(workload.stages)
        compute(batch)
        alone: dict[int, list[float]] = {plain.compute: [], ahead.compute: []}
        loading_alone, loading_beside, compute_beside = [], [], []
        for turn in range(TURNS):
            slices.load(clock, SECONDS_A_TURN)
            for threads, seconds in alone.items():
                with ThreadPolicy(threads):
                    compute(batch)
                    seconds.append(compute_alone(compute, [batch]))
            loading_alone.append(_rate_beside(slices, ahead, None, turn)[0])
            with ThreadPolicy(ahead.compute):
                rate, step = _rate_beside(slices, ahead, (compute, batch), turn)
            loading_beside.append(rate)
            compute_beside.append(step / alone[ahead.compute][-1])
    return {
        "stages": [
            {"name": name, "seconds_per_record": seconds, "nbytes_per_record": nbytes}
            for (name, seconds), nbytes in zip(clock.seconds_per_record(), _stage_nbytes(workload), strict=True)
        ],
        "compute_seconds": {str(threads): statistics.median(seconds) for threads, seconds in alone.items()},
        "records_per_second_in_threads": statistics.median(loading_alone),
        "compute_slowdown": max(1.0, statistics.median(compute_beside)),
        "loading_slowdown": max(
            1.0, statistics.median(one / other for one, other in zip(loading_alone, loading_beside, strict=True))
        ),
        "copy_bytes_per_second": _copy_rate(int(_row_nbytes(batch))),
        "batch_nbytes": batch.nbytes,
        "device": compute.device,
        "model": usual_model(_first_features(batch).shape[1:]),
    }


class StageClock(MutableSequence[int]):
    """What a loader writes down of where it is (see `etl.loading.loading.Where`), as times: the seconds between two
    notes are those of the stage that the first of them named.
    """

    def __init__(self, stages: tuple[str, ...]) -> None:
        self._names = stages
        self._seconds = [0.0] * len(stages)
        self._place: int | None = None
        self._since = 0.0
        self.records = 0

    def seconds_per_record(self) -> list[tuple[str, float]]:
        """For each stage, reading first; storing a record in its batch is in the last."""
        return [(name, seconds / self.records) for name, seconds in zip(self._names, self._seconds, strict=True)]

    def end(self) -> None:
        """Loading pauses here."""
        self._note(None)

    def __setitem__(self, index: Any, value: Any) -> None:
        if index == 0:
            self.records += 1
            self._note(0)
        elif index == 1:
            self._note(value - READING)

    def __getitem__(self, index: Any) -> Any:
        return 0

    def __len__(self) -> int:
        return 3

    def __delitem__(self, index: Any) -> None:
        raise TypeError("it has three places")

    def insert(self, index: int, value: int) -> None:  # noqa: ARG002
        raise TypeError("it has three places")

    def _note(self, place: int | None) -> None:
        now = time.perf_counter()
        if self._place is not None:
            self._seconds[self._place] += now - self._since
        self._place, self._since = place, now


class _Slices:
    """Loads some of the records again and again, for a time, in the caller's thread."""

    def __init__(self, workload: Workload, loader: Loader) -> None:
        self._loader = loader
        self._order = np.random.default_rng(workload.settings.seed).permutation(len(workload.records))
        self._batch = min(workload.settings.batch_size, len(workload.records))

    def load(
        self, where: MutableSequence[int], seconds: float, first: int = 0, stop: threading.Event | None = None
    ) -> int:
        """Load for `seconds`, or until `stop` is set; how many records. Every record is loaded whole."""
        numbers = np.roll(self._order, -first)
        done = 0
        until = time.perf_counter() + seconds
        arrays: dict[str, np.ndarray] = {}
        while time.perf_counter() < until and not (stop is not None and stop.is_set()):
            chosen = np.take(numbers, range(done, done + self._batch), mode="wrap")
            layout = self._loader.lay_out(chosen, 0, nowhere())
            for row, number in enumerate(chosen):
                if time.perf_counter() >= until:
                    break
                if not row or {name: array.shape[1:] for name, array in arrays.items()} != {
                    name: shape for name, (shape, _) in layout.items()
                }:
                    arrays = {name: np.empty((self._batch, *shape), dtype) for name, (shape, dtype) in layout.items()}
                rows = {name: array[row : row + 1] for name, array in arrays.items()}
                self._loader.load(np.array([number]), 0, rows, where)
                done += 1
            if isinstance(where, StageClock):
                where.end()
        return done


def _rate_beside(
    slices: _Slices, threads: Threads, work: tuple[Training | Wait, Any] | None, turn: int
) -> tuple[float, float]:
    """Records a second that threads load, and seconds of a training step beside them."""
    stop = threading.Event()
    loaded: list[int] = []
    seconds = SECONDS_A_TURN if work is None else 60.0
    workers = [
        threading.Thread(
            target=lambda first=number * 1000 + turn: loaded.append(slices.load(nowhere(), seconds, first, stop))
        )
        for number in range(max(1, threads.loading))
    ]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    step = 0.0
    if work is not None:
        compute, batch = work
        try:
            step = compute_alone(compute, [batch])
        finally:
            stop.set()
    for worker in workers:
        worker.join()
    return sum(loaded) / (time.perf_counter() - started), step


def _stage_nbytes(workload: Workload) -> list[float]:
    """Mean bytes of the features of a record after each stage."""
    chosen = [workload.records[index] for index in range(min(RECORDS_LOOKED_AT, len(workload.records)))]
    means = []
    for stage in workload.stages:
        pipeline = None if stage == READ else workload.pipeline.until(stage)
        done = [record if pipeline is None else pipeline(record) for record in chosen]
        sizes = [
            sum(np.asarray(value).nbytes for name, value in flatten(record).items() if name.startswith("features"))
            for record in done
        ]
        means.append(float(np.mean(sizes)))
    return means


def _copy_rate(row_nbytes: int) -> float:
    """Bytes a second that one thread copies, in rows of `row_nbytes` from random places that no cache holds."""
    rows = max(2, COPIED_NBYTES // max(1, row_nbytes))
    source = np.ones((rows, max(1, row_nbytes)), np.uint8)
    target = np.ones_like(source)
    order = np.random.default_rng(0).permutation(rows)
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        np.take(source, order, axis=0, out=target, mode="clip")
        best = min(best, time.perf_counter() - started)
    return source.nbytes / best


def _first_features(batch: Any) -> np.ndarray:
    first: np.ndarray = batch.features[0] if isinstance(batch.features, tuple) else batch.features
    return first


def _row_nbytes(batch: Any) -> float:
    return float(batch.nbytes / len(batch))
