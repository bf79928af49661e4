"""SPDL: facebookresearch.github.io/spdl, "Building High-Performance DataLoaders".

facebookresearch.github.io/spdl/latest/optimization_guide/resolution.html advises to adjust the concurrency: 4 or 8 on
large machines, and fewer if the work is bound by the CPU, as here ("noisy neighbour"). So it is tuned around the number
of CPUs, with the size of the sink and `use_thread_output_queue`, "for lower-latency batch handoff".

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
import simplejpeg
from spdl.pipeline import PipelineBuilder

from benchmarks.peers.loader import SIZE, ReusedBatches, decode, list_photographs, normalise


class ShuffledBatches:
    """A source of the indices of each batch, in a new order whenever it is iterated."""

    def __init__(self, count: int, batch_size: int) -> None:
        self._count, self._batch_size = count, batch_size

    def __iter__(self) -> Iterator[np.ndarray]:
        order = np.random.default_rng().permutation(self._count)
        return (order[start : start + self._batch_size] for start in range(0, self._count, self._batch_size))


class LoadRaw:
    def __init__(
        self, path: str, batch_size: int, workers: int, buffer_size: int = 3, thread_queue: bool = False
    ) -> None:
        cv2.setNumThreads(1)  # the pipeline's threads are the parallel ones
        self.files, self.labels = list_photographs(path)
        self.batches = ReusedBatches(batch_size)
        self.pipeline = (
            PipelineBuilder()
            .add_source(ShuffledBatches(len(self.files), batch_size), continuous=True)
            .pipe(self.load, concurrency=workers)
            .add_sink(buffer_size)
            .build(num_threads=workers, use_thread_output_queue=thread_queue)
        )

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, index in zip(batch, indices, strict=True):
            cv2.resize(simplejpeg.decode_jpeg(self.files[index].read_bytes()), (SIZE, SIZE), dst=pixels)
            normalise(pixels, image)
        return batch, self.labels[indices]

    def __iter__(self) -> Any:
        for batch, labels in self.pipeline.get_iterator():
            yield batch, labels
            self.batches.give_back(batch)

    def close(self) -> None:
        self.pipeline.stop()


class LoadMemmap:
    @staticmethod
    def prepare(path: str, folder: str) -> None:
        files, labels = list_photographs(path)
        images = np.lib.format.open_memmap(f"{folder}/images.npy", "w+", np.uint8, (len(files), SIZE, SIZE, 3))
        for number, file in enumerate(files):
            images[number] = decode(file)
        np.save(f"{folder}/labels.npy", labels)

    def __init__(
        self, folder: str, batch_size: int, workers: int, buffer_size: int = 3, thread_queue: bool = False
    ) -> None:
        cv2.setNumThreads(1)  # the pipeline's threads are the parallel ones
        self.images = np.load(f"{folder}/images.npy", mmap_mode="r")
        self.labels = np.load(f"{folder}/labels.npy")
        self.batches = ReusedBatches(batch_size)
        self.pipeline = (
            PipelineBuilder()
            .add_source(ShuffledBatches(len(self.images), batch_size), continuous=True)
            .pipe(self.load, concurrency=workers)
            .add_sink(buffer_size)
            .build(num_threads=workers, use_thread_output_queue=thread_queue)
        )

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        for image, index in zip(batch, indices, strict=True):
            normalise(self.images[index], image)
        return batch, self.labels[indices]

    def __iter__(self) -> Any:
        for batch, labels in self.pipeline.get_iterator():
            yield batch, labels
            self.batches.give_back(batch)

    def close(self) -> None:
        self.pipeline.stop()


SETTINGS = {"workers": (1, 2, 3, 4), "buffer_size": (2, 3, 6), "thread_queue": (False, True)}
LoadRaw.settings = LoadMemmap.settings = SETTINGS
