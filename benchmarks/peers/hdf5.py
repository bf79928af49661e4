"""h5py: docs.h5py.org. Indexing with many rows reads element by element, so `Dataset.read_direct` reads each row alone,
into memory that is used again.

h5py reads under one global lock (its page "Thread-safety"), so threads read in turn; they normalise in parallel.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import h5py
import numpy as np

from benchmarks.peers.loader import SIZE, ReusedBatches, decode, list_photographs, normalise


class LoadHdf5:
    @staticmethod
    def prepare(path: str, folder: str) -> None:
        files, labels = list_photographs(path)
        with h5py.File(f"{folder}/photographs.h5", "w") as file:
            file["labels"] = labels
            images = file.create_dataset("images", (len(files), SIZE, SIZE, 3), np.uint8)
            for number, photograph in enumerate(files):
                images[number] = decode(photograph)

    def __init__(self, folder: str, batch_size: int, workers: int) -> None:
        cv2.setNumThreads(1)  # the threads of the pool are the parallel ones
        file = h5py.File(f"{folder}/photographs.h5")
        self.images, self.labels = file["images"], file["labels"][:]
        self.batch_size, self.batches, self.pool = batch_size, ReusedBatches(batch_size), ThreadPoolExecutor(workers)

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, index in zip(batch, indices, strict=True):
            self.images.read_direct(pixels, np.s_[index])
            normalise(pixels, image)
        return batch, self.labels[indices]

    def __iter__(self) -> Any:
        order = np.random.default_rng().permutation(len(self.images))
        left = deque(order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size))
        ahead = deque(self.pool.submit(self.load, left.popleft()) for _ in range(min(3, len(left))))
        while ahead:
            batch, labels = ahead.popleft().result()
            if left:
                ahead.append(self.pool.submit(self.load, left.popleft()))
            yield batch, labels
            self.batches.give_back(batch)
