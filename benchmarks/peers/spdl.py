"""SPDL: facebookresearch.github.io/spdl, "Building High-Performance DataLoaders".

facebookresearch.github.io/spdl/latest/optimization_guide/resolution.html advises to adjust the concurrency: 4 or 8 on
large machines, and fewer if the work is bound by the CPU, as here ("noisy neighbour"). Its `settings` are around the
number of CPUs, with the size of the sink and `use_thread_output_queue`, "for lower-latency batch handoff".

One stage loads a whole batch, whose indices come from the source: .../spdl/latest/best_practice.html says not to make
tensors of single images, and with `aggregate` every record would pass through the one thread of the event loop. One
pipeline with a continuous source serves all epochs ("Execution Models", "Caveats"), since stopping one takes 0.1 s.

Its own decoder, `spdl.io.load_image_batch` (FFmpeg), took 2.3 s of CPU for 1,000 of these photographs, simplejpeg 1.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
from spdl.pipeline import PipelineBuilder

from benchmarks.peers.loader import (
    Fill,
    FilledBatches,
    fill_from_jpegs,
    fill_with_crops,
    open_images,
    open_memmap,
    write_memmap,
)


class ShuffledBatches:
    """A source of the indices of each batch, in a new order whenever it is iterated."""

    def __init__(self, count: int, batch_size: int) -> None:
        self._count, self._batch_size = count, batch_size

    def __iter__(self) -> Iterator[np.ndarray]:
        order = np.random.default_rng().permutation(self._count)
        return (order[start : start + self._batch_size] for start in range(0, self._count, self._batch_size))


class _Pipeline:
    """Epochs of batches: `fill` writes the images with these indices into one."""

    def __init__(
        self, labels: np.ndarray, fill: Fill, batch_size: int, workers: int, buffer_size: int, thread_queue: bool
    ) -> None:
        cv2.setNumThreads(1)  # the pipeline's threads are the parallel ones
        self.batches = FilledBatches(labels, fill, batch_size)
        self.pipeline = (
            PipelineBuilder()
            .add_source(ShuffledBatches(len(labels), batch_size), continuous=True)
            .pipe(self.batches.load, concurrency=workers)
            .add_sink(buffer_size)
            .build(num_threads=workers, use_thread_output_queue=thread_queue)
        )

    def __iter__(self) -> Any:
        for batch, labels in self.pipeline.get_iterator():
            yield batch, labels
            self.batches.give_back(batch)

    def close(self) -> None:
        self.pipeline.stop()


def load_raw(path: str, batch_size: int, workers: int, buffer_size: int = 3, thread_queue: bool = False) -> Any:
    return _Pipeline(*open_images(path, fill_from_jpegs), batch_size, workers, buffer_size, thread_queue)


def load_crops(path: str, batch_size: int, workers: int, buffer_size: int = 3, thread_queue: bool = False) -> Any:
    return _Pipeline(*open_images(path, fill_with_crops), batch_size, workers, buffer_size, thread_queue)


def load_memmap(folder: str, batch_size: int, workers: int, buffer_size: int = 3, thread_queue: bool = False) -> Any:
    return _Pipeline(*open_memmap(folder), batch_size, workers, buffer_size, thread_queue)


load_memmap.prepare = write_memmap
SETTINGS = {"workers": (1, 2, 3, 4), "buffer_size": (2, 3, 6), "thread_queue": (False, True)}
load_raw.settings = load_crops.settings = load_memmap.settings = SETTINGS
