"""One loader in a fresh process of its own environment: prepares its files, checks its work, or takes one sample.

It needs numpy, psutil and xxhash besides what the loader needs.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from benchmarks.measuring.arrays import touch
from benchmarks.measuring.clock import run_epoch
from benchmarks.measuring.device import SimulatedDevice
from benchmarks.measuring.process_tree import PeakMemory, cpu_seconds
from benchmarks.measuring.server import Answer, OpenSession, Request
from benchmarks.measuring.turns import DifferentWork
from benchmarks.measuring.values import JsonValues
from benchmarks.peers.same_work import check_batch, check_epochs

PREPARE, CHECK, SAMPLE = "prepare", "check", "sample"
# Compute that leaves the CPU free, as a step on a GPU does.
COMPUTE_SECONDS = 0.05


@dataclass(frozen=True)
class Work(JsonValues):
    """One thing that a loader is asked to do.

    Attributes
    ----------
    action : str
        `PREPARE` answers with `Prepared`, `SAMPLE` with `Figures`, and `CHECK` with nothing.
    module, function : str
        The code of the user.
    imports : tuple of str
        Modules to import before the clock starts.
    source, folder : str
        What the files are made from, and where they are.
    expected : str
        A .npy of what `same_work.describe` says of all photographs.
    records, batch_size, threads : int
        Of the epoch, and for the loader.
    tolerance : float
        Of `same_work.check_epochs`.
    channels_last : bool
        As the loader says.
    seconds_per_figure : float
        How long loading alone is measured.
    scratch : str
        An empty folder to work in.
    """

    action: str
    module: str
    function: str
    imports: tuple[str, ...]
    source: str
    folder: str
    expected: str
    records: int
    batch_size: int
    threads: int
    tolerance: float
    channels_last: bool
    seconds_per_figure: float
    scratch: str


@dataclass(frozen=True)
class Prepared(JsonValues):
    """Seconds that it took to write a loader's files."""

    seconds: float


@dataclass(frozen=True)
class Figures(JsonValues):
    """What a sample of a loader holds.

    Attributes
    ----------
    first_batch_seconds : float
        From calling the user's code to the first batch in memory.
    images_per_second, cpu_seconds_per_1000 : float
        Of epochs of loading alone, with the loader warm.
    waiting_images_per_second : float
        Of an epoch on a simulated device: 50 ms a batch that need no CPU, with at most one step in flight.
    peak_memory : int
        Bytes, of the first epoch after its first batch.
    """

    first_batch_seconds: float
    images_per_second: float
    cpu_seconds_per_1000: float
    waiting_images_per_second: float
    peak_memory: int


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Do the `Work` that `request` is, and answer with its result.

    No session follows. A forked process would not have the threads that libraries start when they are imported, nor
    would it end in order, which removes the shared memory of some.
    """
    return answer(Work.from_json(request)), _no_session


def _no_session(request: Request) -> NoReturn:
    raise ValueError(f"a process of a peer does one thing, and not {request} after it")


class Touchable:
    """A batch as the clock takes it."""

    def __init__(self, images: Any, numbers: Any) -> None:
        array = np.asarray(images)
        # Bytes are read as they lie: a copy into another layout would be paid by a loader that does not need it.
        self._array = array if array.flags.c_contiguous else array.transpose(0, 2, 3, 1)
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self._array)

    def arrays(self) -> list[np.ndarray]:
        """The images, one contiguous array."""
        return [self._array]


class Epochs:
    """What a loader made, as the clock takes it."""

    def __init__(self, loaded: Iterable[tuple[Any, Any]]) -> None:
        self._loaded = loaded

    def __iter__(self) -> Iterator[Touchable]:
        # Nothing here holds on to a batch while the next one is asked for: its memory may serve again.
        return map(_touchable, self._loaded)


def _touchable(pair: tuple[Any, Any]) -> Touchable:
    return Touchable(*pair)


def answer(work: Work) -> Answer:
    """Do `work` in this process."""
    os.chdir(work.scratch)
    # The machine of the loader, whatever it starts: libraries count the processors that they are allowed to use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: work.threads])
    for module in work.imports:
        importlib.import_module(module)
    function = getattr(importlib.import_module(work.module), work.function)
    if work.action == PREPARE:
        started = time.perf_counter()
        function(work.source, work.folder)
        return Prepared(time.perf_counter() - started).to_json()
    if work.action == SAMPLE:
        return take_sample(function, work).to_json()
    loaded = function(work.folder, work.batch_size, work.threads)
    check_epochs((loaded, loaded), np.load(work.expected), work.batch_size, work.tolerance, work.channels_last)
    if "cv2" in work.imports:
        check_opencv()
    return {}


def check_opencv() -> None:
    """Raise `DifferentWork` if OpenCV may start threads of its own in each of a loader's threads or workers."""
    import cv2

    if cv2.getNumThreads() > 1:
        raise DifferentWork(
            f"OpenCV may start {cv2.getNumThreads()} threads in each thread or worker of the loader, which slows it "
            "down; call cv2.setNumThreads(1) before they start"
        )


def take_sample(function: Any, work: Work) -> Figures:
    """Return the figures of a loader: the start of the first epoch, then whole epochs of the warm loader."""
    started = time.perf_counter()
    loaded = function(work.folder, work.batch_size, work.threads)
    batches = iter(loaded)
    images, _numbers = next(batches)
    touch(Touchable(images, _numbers))
    first_batch_seconds = time.perf_counter() - started
    check_batch(images, work.batch_size, work.channels_last)
    samples = len(images)
    del images, _numbers
    with PeakMemory() as memory:
        for images, _numbers in batches:
            touch(Touchable(images, _numbers))
            samples += len(images)
    _check_count(samples, work.records)
    epochs = Epochs(loaded)
    cpu, wall, done = cpu_seconds(), 0.0, 0
    while done == 0 or wall < work.seconds_per_figure:
        times = run_epoch(epochs, None)
        _check_count(times.samples, work.records)
        wall += times.wall.total
        done += times.samples
    cpu = cpu_seconds() - cpu
    waiting = run_epoch(epochs, SimulatedDevice(COMPUTE_SECONDS))
    _check_count(waiting.samples, work.records)
    return Figures(
        first_batch_seconds=first_batch_seconds,
        images_per_second=done / wall,
        cpu_seconds_per_1000=cpu * 1000 / done,
        waiting_images_per_second=waiting.samples / waiting.wall.total,
        peak_memory=memory.nbytes,
    )


def _check_count(samples: int, records: int) -> None:
    if samples != records:
        raise DifferentWork(f"an epoch had {samples} photographs, not {records}")
