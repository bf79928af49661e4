"""Grain: google-grain.readthedocs.io, "Dataset basics".

Indices are shuffled and batched, and one thread loads a batch into memory that was used before. `batch` after `map`
would stack images into a new array (grain/_src/python/dataset/transformations/batch.py).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.loader import PRESAVED, RAW, SIZE, Loader, ReusedBatches, normalise


class LoadRaw:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        import cv2

        cv2.setNumThreads(1)  # the reading threads are the parallel ones
        self.files = sorted(Path(folder).glob("*/*.jpg"))
        self.batch_size, self.threads, self.epoch = batch_size, threads, 0
        self.batches = ReusedBatches(batch_size)

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
        import grain

        self.epoch += 1
        dataset = grain.MapDataset.range(len(self.files)).shuffle(self.epoch).batch(self.batch_size).map(self.load)
        for batch, indices in dataset.to_iter_dataset(grain.ReadOptions(self.threads, prefetch_buffer_size=3)):
            yield batch, indices
            self.batches.give_back(batch)


def prepare_memmap(source: str, folder: str) -> None:
    shutil.copy2(source, Path(folder) / "images.npy")


class LoadMemmap:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        import cv2

        cv2.setNumThreads(1)  # the reading threads are the parallel ones
        self.images = np.load(f"{folder}/images.npy", mmap_mode="r")
        self.batch_size, self.threads, self.epoch = batch_size, threads, 0
        self.batches = ReusedBatches(batch_size)

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        for image, index in zip(batch, indices, strict=True):
            normalise(self.images[index], image)
        return batch, indices

    def __iter__(self) -> Any:
        import grain

        self.epoch += 1
        dataset = grain.MapDataset.range(len(self.images)).shuffle(self.epoch).batch(self.batch_size).map(self.load)
        for batch, indices in dataset.to_iter_dataset(grain.ReadOptions(self.threads, prefetch_buffer_size=3)):
            yield batch, indices
            self.batches.give_back(batch)


LOADERS = (
    Loader("Grain, simplejpeg", RAW, LoadRaw, imports=("cv2", "simplejpeg", "grain")),
    Loader("Grain, memmap", PRESAVED, LoadMemmap, imports=("cv2", "grain"), prepare=prepare_memmap),
)
