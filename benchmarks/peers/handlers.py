"""The measuring process of one loader, in its own environment: it prepares files, checks the work or takes a sample.

Besides what the loader needs, it needs numpy, psutil and xxhash.
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
from benchmarks.peers.work import check_batch, check_epochs

PREPARE, CHECK, SAMPLE = "prepare", "check", "sample"
# Compute that leaves the CPU free, as a step on a GPU does.
COMPUTE_SECONDS = 0.05


@dataclass(frozen=True)
class LoaderRequest(JsonValues):
    """One action of a loader.

    Attributes
    ----------
    action : str
        `PREPARE` answers with `Prepared`, `SAMPLE` with `LoaderMetrics`, and `CHECK` with nothing.
    module, function : str
        The loader's code, as a user writes it: its `load`, or `prepare`.
    imports : tuple of str
        As `Loader` has them.
    source, folder : str
        As `Loader.prepare` takes them; `Loader.load` takes the folder.
    expected : str
        A .npy of `work.describe` of all photographs.
    records, batch_size, threads : int
        Records of an epoch, and the batch size and threads of the loader.
    tolerance : float
        As `work.check_epochs` takes it.
    channels_last : bool
        As `Loader` has it.
    min_seconds : float
        Loading alone is measured for at least this long.
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
    min_seconds: float
    scratch: str


@dataclass(frozen=True)
class Prepared(JsonValues):
    """Seconds that it took to write a loader's files."""

    seconds: float


@dataclass(frozen=True)
class LoaderMetrics(JsonValues):
    """The metrics of one sample of a loader.

    Attributes
    ----------
    first_batch_seconds : float
        From calling the user's code to the first batch in memory.
    images_per_second, cpu_seconds_per_1000 : float
        Speed and CPU time of loading alone, in epochs of the warm loader.
    waiting_images_per_second : float
        Of an epoch on a simulated device: 50 ms a batch that need no CPU, with at most one step in flight.
    peak_memory : int
        Bytes in the first epoch, after its first batch.
    """

    first_batch_seconds: float
    images_per_second: float
    cpu_seconds_per_1000: float
    waiting_images_per_second: float
    peak_memory: int


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Do what a `LoaderRequest` asks for, and answer with the result.

    No session follows. A forked process would lack the threads that libraries start when they are imported. It would
    also skip exit handlers, in which some libraries remove their shared memory.
    """
    return answer(LoaderRequest.from_json(request)), _no_session


def _no_session(request: Request) -> NoReturn:
    raise ValueError(f"a process of a peer does one thing, and not {request} after it")


class LoadedBatch:
    """A batch, as the clock takes it."""

    def __init__(self, images: Any, numbers: Any) -> None:
        array = np.asarray(images)
        # Bytes are read in their order in memory: a copy into another layout would cost the loader time.
        self._array = array if array.flags.c_contiguous else array.transpose(0, 2, 3, 1)
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self._array)

    def arrays(self) -> list[np.ndarray]:
        """Return the images, one contiguous array."""
        return [self._array]


class LoaderEpochs:
    """The epochs of a loader, as the clock takes them."""

    def __init__(self, loaded: Iterable[tuple[Any, Any]]) -> None:
        self._loaded = loaded

    def __iter__(self) -> Iterator[LoadedBatch]:
        # No reference to a batch is kept while the next one is requested: its memory may be used again.
        return map(_loaded_batch, self._loaded)


def _loaded_batch(pair: tuple[Any, Any]) -> LoadedBatch:
    return LoadedBatch(*pair)


def answer(request: LoaderRequest) -> Answer:
    """Do what `request` asks for, in this process."""
    os.chdir(request.scratch)
    # All that the loader starts has these CPUs: libraries count the CPUs that they are allowed to use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: request.threads])
    for imported in request.imports:
        module, _, function_name = imported.partition(":")
        loaded_module = importlib.import_module(module)
        if function_name:
            getattr(loaded_module, function_name)()
    function = getattr(importlib.import_module(request.module), request.function)
    if request.action == PREPARE:
        started = time.perf_counter()
        function(request.source, request.folder)
        return Prepared(time.perf_counter() - started).to_json()
    if request.action == SAMPLE:
        return take_sample(function, request).to_json()
    loaded = function(request.folder, request.batch_size, request.threads)
    check_epochs(
        (loaded, loaded), np.load(request.expected), request.batch_size, request.tolerance, request.channels_last
    )
    if "cv2" in request.imports:
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


def take_sample(function: Any, request: LoaderRequest) -> LoaderMetrics:
    """Return the metrics of a loader: the start of the first epoch, then whole epochs of the warm loader."""
    started = time.perf_counter()
    loaded = function(request.folder, request.batch_size, request.threads)
    batches = iter(loaded)
    images, _numbers = next(batches)
    touch(LoadedBatch(images, _numbers))
    first_batch_seconds = time.perf_counter() - started
    check_batch(images, request.batch_size, request.channels_last)
    samples = len(images)
    del images, _numbers
    with PeakMemory() as memory:
        for images, _numbers in batches:
            touch(LoadedBatch(images, _numbers))
            samples += len(images)
    _check_count(samples, request.records)
    epochs = LoaderEpochs(loaded)
    cpu, wall, done = cpu_seconds(), 0.0, 0
    while done == 0 or wall < request.min_seconds:
        times = run_epoch(epochs, None)
        _check_count(times.samples, request.records)
        wall += times.wall.total
        done += times.samples
    cpu = cpu_seconds() - cpu
    waiting = run_epoch(epochs, SimulatedDevice(COMPUTE_SECONDS))
    _check_count(waiting.samples, request.records)
    return LoaderMetrics(
        first_batch_seconds=first_batch_seconds,
        images_per_second=done / wall,
        cpu_seconds_per_1000=cpu * 1000 / done,
        waiting_images_per_second=waiting.samples / waiting.wall.total,
        peak_memory=memory.nbytes,
    )


def _check_count(samples: int, records: int) -> None:
    if samples != records:
        raise DifferentWork(f"an epoch had {samples} photographs, not {records}")
