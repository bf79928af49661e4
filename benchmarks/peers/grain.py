"""Grain: google-grain.readthedocs.io, "Dataset basics".

google-grain.readthedocs.io/en/latest/grain.html (`ReadOptions`) gives 16 threads and a buffer of 500 elements as
defaults, for records that are read from far away. Here an element is a batch, so the workers and 3 are the defaults. It
recommends 0 threads for data in memory, so that they do not contend for the GIL: the tuner tries that for pixels. With
0 nothing is loaded ahead.

Indices are shuffled and batched, and one thread loads a batch into memory that was used before. `batch` after `map`
would stack images into a new array (grain/_src/python/dataset/transformations/batch.py).
"""

from __future__ import annotations

from typing import Any

import cv2
import grain
import numpy as np
import simplejpeg

from benchmarks.peers.loader import SIZE, ReusedBatches, decode, list_photographs, normalise


class LoadRaw:
    def __init__(self, path: str, batch_size: int, workers: int, prefetch_buffer_size: int = 3) -> None:
        cv2.setNumThreads(1)  # the reading threads are the parallel ones
        self.files, self.labels = list_photographs(path)
        self.batch_size, self.epoch = batch_size, 0
        self.options = grain.ReadOptions(workers, prefetch_buffer_size)
        self.batches = ReusedBatches(batch_size)

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, index in zip(batch, indices, strict=True):
            cv2.resize(simplejpeg.decode_jpeg(self.files[index].read_bytes()), (SIZE, SIZE), dst=pixels)
            normalise(pixels, image)
        return batch, self.labels[indices]

    def __iter__(self) -> Any:
        self.epoch += 1
        dataset = grain.MapDataset.range(len(self.files)).shuffle(self.epoch).batch(self.batch_size).map(self.load)
        for batch, labels in dataset.to_iter_dataset(self.options):
            yield batch, labels
            self.batches.give_back(batch)


class LoadMemmap:
    @staticmethod
    def prepare(path: str, folder: str) -> None:
        files, labels = list_photographs(path)
        images = np.lib.format.open_memmap(f"{folder}/images.npy", "w+", np.uint8, (len(files), SIZE, SIZE, 3))
        for number, file in enumerate(files):
            images[number] = decode(file)
        np.save(f"{folder}/labels.npy", labels)

    def __init__(self, folder: str, batch_size: int, workers: int, prefetch_buffer_size: int = 3) -> None:
        cv2.setNumThreads(1)  # the reading threads are the parallel ones
        self.images = np.load(f"{folder}/images.npy", mmap_mode="r")
        self.labels = np.load(f"{folder}/labels.npy")
        self.batch_size, self.epoch = batch_size, 0
        self.options = grain.ReadOptions(workers, prefetch_buffer_size)
        self.batches = ReusedBatches(batch_size)

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        for image, index in zip(batch, indices, strict=True):
            normalise(self.images[index], image)
        return batch, self.labels[indices]

    def __iter__(self) -> Any:
        self.epoch += 1
        dataset = grain.MapDataset.range(len(self.images)).shuffle(self.epoch).batch(self.batch_size).map(self.load)
        for batch, labels in dataset.to_iter_dataset(self.options):
            yield batch, labels
            self.batches.give_back(batch)


LoadRaw.settings = {"workers": (1, 2, 3, 4), "prefetch_buffer_size": (2, 3, 6)}
LoadMemmap.settings = {"workers": (0, 1, 2, 3), "prefetch_buffer_size": (2, 3, 6)}
