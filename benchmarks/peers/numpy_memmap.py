"""numpy and the standard library alone: a memory map of one .npy, read by threads."""

from __future__ import annotations

import shutil
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.loader import PRESAVED, Loader, ReusedBatches, normalise


def prepare_memmap(source: str, folder: str) -> None:
    shutil.copy2(source, Path(folder) / "images.npy")


class LoadMemmap:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        import cv2

        cv2.setNumThreads(1)  # the threads of the pool are the parallel ones
        self.images = np.load(f"{folder}/images.npy", mmap_mode="r")
        self.batch_size, self.batches, self.pool = batch_size, ReusedBatches(batch_size), ThreadPoolExecutor(threads)

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        for image, index in zip(batch, indices, strict=True):
            normalise(self.images[index], image)
        return batch, indices

    def __iter__(self) -> Any:
        order = np.random.default_rng().permutation(len(self.images))
        left = deque(order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size))
        ahead = deque(self.pool.submit(self.load, left.popleft()) for _ in range(min(3, len(left))))
        while ahead:
            batch, indices = ahead.popleft().result()
            if left:
                ahead.append(self.pool.submit(self.load, left.popleft()))
            yield batch, indices
            self.batches.give_back(batch)


LOADERS = (Loader("numpy memmap", PRESAVED, LoadMemmap, imports=("cv2",), prepare=prepare_memmap),)
