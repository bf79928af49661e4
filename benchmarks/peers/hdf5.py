"""h5py: docs.h5py.org. Indexing with many rows reads element by element, so each row is read alone.

docs.h5py.org/en/stable/high/dataset.html says that fancy indexing is slow for many rows, and advises `read_direct` into
memory that is used again. Its selection costs more than the read: 80 us a row, against 23 us with the low-level API
(api.h5py.org/h5d.html), which reads into the same memory and is used here. docs.h5py.org/en/stable/threads.html: h5py
reads under one global lock, so threads read in turn; they normalise in parallel.
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

    def __init__(self, folder: str, batch_size: int, workers: int, ahead: int = 3) -> None:
        cv2.setNumThreads(1)  # the threads of the pool are the parallel ones
        file = h5py.File(f"{folder}/photographs.h5")
        self.images, self.labels = file["images"].id, file["labels"][:]
        self.batch_size, self.ahead = batch_size, ahead
        self.batches, self.pool = ReusedBatches(batch_size), ThreadPoolExecutor(workers)

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        pixels, shape = np.empty((SIZE, SIZE, 3), np.uint8), (1, SIZE, SIZE, 3)
        source, target = self.images.get_space(), h5py.h5s.create_simple(shape)
        for image, index in zip(batch, indices, strict=True):
            source.select_hyperslab((int(index), 0, 0, 0), shape)
            self.images.read(target, source, pixels)
            normalise(pixels, image)
        return batch, self.labels[indices]

    def __iter__(self) -> Any:
        order = np.random.default_rng().permutation(len(self.labels))
        left = deque(order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size))
        ahead = deque(self.pool.submit(self.load, left.popleft()) for _ in range(min(self.ahead, len(left))))
        while ahead:
            batch, labels = ahead.popleft().result()
            if left:
                ahead.append(self.pool.submit(self.load, left.popleft()))
            yield batch, labels
            self.batches.give_back(batch)


LoadHdf5.settings = {"workers": (1, 2, 3), "ahead": (2, 3, 6)}
