"""numpy and the standard library alone: a memory map of one .npy, read by threads.

numpy.org/doc/stable/reference/generated/numpy.memmap.html advises a map for small segments of large files, which is
what a shuffled batch reads. docs.python.org/3/library/concurrent.futures.html advises threads where calls release the
GIL, as OpenCV's do; how many, and how many batches ahead, is for the tuner to find.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np

from benchmarks.peers.loader import SIZE, ReusedBatches, decode, list_photographs, normalise


class LoadMemmap:
    @staticmethod
    def prepare(path: str, folder: str) -> None:
        files, labels = list_photographs(path)
        images = np.lib.format.open_memmap(f"{folder}/images.npy", "w+", np.uint8, (len(files), SIZE, SIZE, 3))
        for number, file in enumerate(files):
            images[number] = decode(file)
        np.save(f"{folder}/labels.npy", labels)

    def __init__(self, folder: str, batch_size: int, workers: int, ahead: int = 3) -> None:
        cv2.setNumThreads(1)  # the threads of the pool are the parallel ones
        self.images = np.load(f"{folder}/images.npy", mmap_mode="r")
        self.labels = np.load(f"{folder}/labels.npy")
        self.batch_size, self.ahead = batch_size, ahead
        self.batches, self.pool = ReusedBatches(batch_size), ThreadPoolExecutor(workers)

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        for image, index in zip(batch, indices, strict=True):
            normalise(self.images[index], image)
        return batch, self.labels[indices]

    def __iter__(self) -> Any:
        order = np.random.default_rng().permutation(len(self.images))
        left = deque(order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size))
        ahead = deque(self.pool.submit(self.load, left.popleft()) for _ in range(min(self.ahead, len(left))))
        while ahead:
            batch, labels = ahead.popleft().result()
            if left:
                ahead.append(self.pool.submit(self.load, left.popleft()))
            yield batch, labels
            self.batches.give_back(batch)


LoadMemmap.settings = {"workers": (1, 2, 3), "ahead": (2, 3, 6)}
