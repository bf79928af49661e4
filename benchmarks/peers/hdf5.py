"""h5py: docs.h5py.org. Indexing with many rows reads element by element, so `Dataset.read_direct` reads each row alone,
into memory that is used again.

h5py reads under one global lock (its page "Thread-safety"), so threads read in turn; they normalise in parallel.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.peers.loader import PRESAVED, SIZE, Loader, ReusedBatches, normalise


def prepare_hdf5(source: str, folder: str) -> None:
    import h5py

    with h5py.File(f"{folder}/photographs.h5", "w") as file:
        file["images"] = np.load(source, mmap_mode="r")


class LoadHdf5:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        import cv2
        import h5py

        cv2.setNumThreads(1)  # the threads of the pool are the parallel ones
        self.images = h5py.File(f"{folder}/photographs.h5")["images"]
        self.batch_size, self.batches, self.pool = batch_size, ReusedBatches(batch_size), ThreadPoolExecutor(threads)

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, index in zip(batch, indices, strict=True):
            self.images.read_direct(pixels, np.s_[index])
            normalise(pixels, image)
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


LOADERS = (Loader("h5py, read_direct", PRESAVED, LoadHdf5, imports=("cv2", "h5py"), prepare=prepare_hdf5),)
