"""TensorStore: google.github.io/tensorstore, a zarr array with a chunk for each photograph.

`read` reads all rows of a batch at once, with threads of its own; a pool of threads requests and normalises batches.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np
import tensorstore

from benchmarks.peers.loader import SIZE, ReusedBatches, decode, list_photographs, normalise


class LoadZarr:
    @staticmethod
    def prepare(path: str, folder: str) -> None:
        files, labels = list_photographs(path)
        store = tensorstore.open(
            {
                "driver": "zarr",
                "kvstore": f"file://{folder}/photographs.zarr/",
                "metadata": {"chunks": [1, SIZE, SIZE, 3], "compressor": None},
            },
            create=True,
            dtype=tensorstore.uint8,
            shape=(len(files), SIZE, SIZE, 3),
        ).result()
        for number, file in enumerate(files):
            store[number] = decode(file)
        np.save(f"{folder}/labels.npy", labels)

    def __init__(self, folder: str, batch_size: int, workers: int) -> None:
        cv2.setNumThreads(1)  # the threads of the pool are the parallel ones
        limits = {"data_copy_concurrency": {"limit": workers}, "file_io_concurrency": {"limit": workers}}
        self.images = tensorstore.open(
            {"driver": "zarr", "kvstore": f"file://{folder}/photographs.zarr/", "context": limits}
        ).result()
        self.labels = np.load(f"{folder}/labels.npy")
        self.batch_size, self.batches, self.pool = batch_size, ReusedBatches(batch_size), ThreadPoolExecutor(workers)

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        for image, pixels in zip(batch, self.images[indices].read().result(), strict=True):
            normalise(pixels, image)
        return batch, self.labels[indices]

    def __iter__(self) -> Any:
        order = np.random.default_rng().permutation(self.images.shape[0])
        left = deque(order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size))
        ahead = deque(self.pool.submit(self.load, left.popleft()) for _ in range(min(3, len(left))))
        while ahead:
            batch, labels = ahead.popleft().result()
            if left:
                ahead.append(self.pool.submit(self.load, left.popleft()))
            yield batch, labels
            self.batches.give_back(batch)
