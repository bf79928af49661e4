"""One loader in a fresh process of its own environment: prepares its files, checks its work, or takes one sample.

    python -m benchmarks.peers.sample REQUEST ANSWER      both are files of JSON

Needs numpy, psutil and xxhash besides what the loader needs; the answer is `{"error": ...}` where anything goes wrong.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring.arrays import touch
from benchmarks.measuring.clock import run_epoch
from benchmarks.measuring.process_tree import PeakMemory, cpu_seconds
from benchmarks.peers.same_work import DifferentWork, check_batch, check_epochs

# Compute that leaves the CPU free, as a step on a GPU does.
COMPUTE_SECONDS = 0.05


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
        for images, numbers in self._loaded:
            yield Touchable(images, numbers)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked for; a JSON object of the results."""
    # The machine of the loader, whatever it starts: libraries count the processors that they are allowed to use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: request["threads"]])
    for module in request["imports"]:
        importlib.import_module(module)
    function = getattr(importlib.import_module(request["module"]), request["function"])
    if request["action"] == "prepare":
        started = time.perf_counter()
        function(request["source"], request["folder"])
        return {"seconds": time.perf_counter() - started}
    arguments = (request["folder"], request["batch_size"], request["threads"])
    if request["action"] == "check":
        loaded = function(*arguments)
        expected = np.load(request["expected"])
        check_epochs((loaded, loaded), expected, request["batch_size"], request["tolerance"], request["channels_last"])
        if "cv2" in request["imports"]:
            check_opencv()
        return {}
    return take_sample(function, arguments, request["records"], request["channels_last"], request["seconds_per_figure"])


def check_opencv() -> None:
    """Raise `DifferentWork` if OpenCV may start threads of its own in each of a loader's threads or workers."""
    import cv2

    if cv2.getNumThreads() > 1:
        raise DifferentWork(
            f"OpenCV may start {cv2.getNumThreads()} threads in each thread or worker of the loader, which slows it "
            "down; call cv2.setNumThreads(1) before they start"
        )


def take_sample(
    function: Any, arguments: tuple[str, int, int], records: int, channels_last: bool, seconds_per_figure: float
) -> dict[str, Any]:
    """The figures of a loader: the start of the first epoch, then whole epochs of the warm loader.

    `first_batch_seconds` from calling the user's code to the first batch in memory; `images_per_second` and
    `cpu_seconds_per_1000` of epochs of loading alone, until they have had `seconds_per_figure`;
    `waiting_images_per_second` of an epoch with 50 ms of compute a batch that needs no CPU; `peak_memory` in bytes, of
    the first epoch after its first batch.
    """
    started = time.perf_counter()
    loaded = function(*arguments)
    batches = iter(loaded)
    images, _numbers = next(batches)
    touch(Touchable(images, _numbers))
    first_batch_seconds = time.perf_counter() - started
    check_batch(images, arguments[1], channels_last)
    samples = len(images)
    del images, _numbers
    with PeakMemory() as memory:
        for images, _numbers in batches:
            touch(Touchable(images, _numbers))
            samples += len(images)
    _check_count(samples, records)
    epochs = Epochs(loaded)
    cpu, wall, done = cpu_seconds(), 0.0, 0
    while done == 0 or wall < seconds_per_figure:
        times = run_epoch(epochs, None)
        _check_count(times.samples, records)
        wall += times.wall.total
        done += times.samples
    cpu = cpu_seconds() - cpu
    waiting = run_epoch(epochs, lambda _: time.sleep(COMPUTE_SECONDS))
    _check_count(waiting.samples, records)
    return {
        "first_batch_seconds": first_batch_seconds,
        "images_per_second": done / wall,
        "cpu_seconds_per_1000": cpu * 1000 / done,
        "waiting_images_per_second": waiting.samples / waiting.wall.total,
        "peak_memory": memory.nbytes,
    }


def _check_count(samples: int, records: int) -> None:
    if samples != records:
        raise DifferentWork(f"an epoch had {samples} photographs, not {records}")


def main() -> None:
    """Answer the request in the file of the first argument into the file of the second."""
    request = json.loads(Path(sys.argv[1]).read_text())
    try:
        result = answer(request)
    except BaseException as error:  # noqa: BLE001 - whatever a foreign library raises is the answer
        result = {"error": f"{type(error).__name__}: {error}"}
        if not isinstance(error, (ImportError, DifferentWork)):
            sys.excepthook(*sys.exc_info())
    unfinished = Path(f"{sys.argv[2]}.unfinished")
    unfinished.write_text(json.dumps(result))
    os.replace(unfinished, sys.argv[2])


if __name__ == "__main__":
    main()
