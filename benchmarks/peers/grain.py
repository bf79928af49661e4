"""Grain: google-grain.readthedocs.io, "Dataset basics".

google-grain.readthedocs.io/en/latest/grain.html (`ReadOptions`) gives 16 threads and a buffer of 500 elements as
defaults, for records that are read from far away. Here an element is a batch, so the workers and 3 are the defaults. It
recommends 0 threads for data in memory, so that they do not contend for the GIL. Then nothing is loaded ahead: on
pixels the rate was 0.86 of that with two, which release the GIL while they normalise.

Indices are shuffled and batched, and one thread loads a batch into memory that was used before. `batch` after `map`
would stack images into a new array (grain/_src/python/dataset/transformations/batch.py).
"""

from __future__ import annotations

from typing import Any

import cv2
import grain
import numpy as np

from benchmarks.peers.loader import (
    Fill,
    FilledBatches,
    fill_from_jpegs,
    fill_with_crops,
    open_images,
    open_memmap,
    write_memmap,
)


class _Batches:
    """Epochs of batches: `fill` writes the images with these indices into one."""

    def __init__(
        self, labels: np.ndarray, fill: Fill, batch_size: int, workers: int, prefetch_buffer_size: int
    ) -> None:
        cv2.setNumThreads(1)  # the reading threads are the parallel ones
        self.batch_size, self.epoch = batch_size, 0
        self.options = grain.ReadOptions(workers, prefetch_buffer_size)
        self.batches = FilledBatches(labels, fill, batch_size)

    def __iter__(self) -> Any:
        self.epoch += 1
        indices = grain.MapDataset.range(len(self.batches.labels)).shuffle(self.epoch).batch(self.batch_size)
        dataset = indices.map(self.batches.load)
        for batch, labels in dataset.to_iter_dataset(self.options):
            yield batch, labels
            self.batches.give_back(batch)


def load_raw(path: str, batch_size: int, workers: int, prefetch_buffer_size: int = 3) -> Any:
    return _Batches(*open_images(path, fill_from_jpegs), batch_size, workers, prefetch_buffer_size)


def load_crops(path: str, batch_size: int, workers: int, prefetch_buffer_size: int = 3) -> Any:
    return _Batches(*open_images(path, fill_with_crops), batch_size, workers, prefetch_buffer_size)


def load_memmap(folder: str, batch_size: int, workers: int, prefetch_buffer_size: int = 3) -> Any:
    return _Batches(*open_memmap(folder), batch_size, workers, prefetch_buffer_size)


load_memmap.prepare = write_memmap
load_raw.settings = load_crops.settings = {"workers": (1, 2, 3, 4), "prefetch_buffer_size": (2, 3, 6)}
load_memmap.settings = {"workers": (0, 1, 2, 3), "prefetch_buffer_size": (2, 3, 6)}
