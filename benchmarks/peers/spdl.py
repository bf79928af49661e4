"""SPDL: facebookresearch.github.io/spdl, "Building High-Performance DataLoaders".

One stage loads a whole batch, whose indices come from the source: its page "Best Practices" says not to make tensors of
single images, and with `aggregate` every record would pass through the one thread of the event loop. One pipeline with
a continuous source serves all epochs ("Execution Models", "Caveats"), since stopping a pipeline takes 0.1 s.

Its own decoder, `spdl.io.load_image_batch` (FFmpeg), took 2.3 s of CPU for 1,000 of these photographs, simplejpeg 1.0.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.loader import PRESAVED, RAW, SIZE, Loader, ReusedBatches, normalise


class ShuffledBatches:
    """A source of the indices of each batch, in a new order whenever it is iterated."""

    def __init__(self, count: int, batch_size: int) -> None:
        self._count, self._batch_size = count, batch_size

    def __iter__(self) -> Iterator[np.ndarray]:
        order = np.random.default_rng().permutation(self._count)
        return (order[start : start + self._batch_size] for start in range(0, self._count, self._batch_size))


class LoadRaw:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        import cv2
        from spdl.pipeline import PipelineBuilder

        cv2.setNumThreads(1)  # the pipeline's threads are the parallel ones
        self.files = sorted(Path(folder).glob("*/*.jpg"))
        self.batches = ReusedBatches(batch_size)
        self.pipeline = (
            PipelineBuilder()
            .add_source(ShuffledBatches(len(self.files), batch_size), continuous=True)
            .pipe(self.load, concurrency=threads)
            .add_sink(3)
            .build(num_threads=threads)
        )

    def load(self, indices: np.ndarray) -> Any:
        import cv2
        import simplejpeg

        batch = self.batches.take(len(indices))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, index in zip(batch, indices, strict=True):
            cv2.resize(simplejpeg.decode_jpeg(self.files[index].read_bytes()), (SIZE, SIZE), dst=pixels)
            normalise(pixels, image)
        return batch, indices

    def __iter__(self) -> Any:
        for batch, indices in self.pipeline.get_iterator():
            yield batch, indices
            self.batches.give_back(batch)


def prepare_memmap(source: str, folder: str) -> None:
    shutil.copy2(source, Path(folder) / "images.npy")


class LoadMemmap:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        import cv2
        from spdl.pipeline import PipelineBuilder

        cv2.setNumThreads(1)  # the pipeline's threads are the parallel ones
        self.images = np.load(f"{folder}/images.npy", mmap_mode="r")
        self.batches = ReusedBatches(batch_size)
        self.pipeline = (
            PipelineBuilder()
            .add_source(ShuffledBatches(len(self.images), batch_size), continuous=True)
            .pipe(self.load, concurrency=threads)
            .add_sink(3)
            .build(num_threads=threads)
        )

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        for image, index in zip(batch, indices, strict=True):
            normalise(self.images[index], image)
        return batch, indices

    def __iter__(self) -> Any:
        for batch, indices in self.pipeline.get_iterator():
            yield batch, indices
            self.batches.give_back(batch)


LOADERS = (
    Loader("SPDL, simplejpeg", RAW, LoadRaw, imports=("cv2", "simplejpeg", "spdl.pipeline")),
    Loader("SPDL, memmap", PRESAVED, LoadMemmap, imports=("cv2", "spdl.pipeline"), prepare=prepare_memmap),
)
