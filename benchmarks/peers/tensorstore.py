"""TensorStore: google.github.io/tensorstore, a zarr array with a chunk for each photograph.

`read` reads all rows of a batch at once, with threads of its own; a pool of threads requests and normalises batches.
google.github.io/tensorstore/python/tutorial.html advises to request many chunks at once, as a batch does here.
google.github.io/tensorstore/context.html and .../kvstore/file/index.html name the limits: `data_copy_concurrency`, here
the workers, and `file_io_concurrency`, by default "shared": at least four threads.
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

    def __init__(
        self, folder: str, batch_size: int, workers: int, ahead: int = 3, file_io: int | str = "shared"
    ) -> None:
        cv2.setNumThreads(1)  # the threads of the pool are the parallel ones
        limits = {"data_copy_concurrency": {"limit": workers}, "file_io_concurrency": {"limit": file_io}}
        self.images = tensorstore.open(
            {"driver": "zarr", "kvstore": f"file://{folder}/photographs.zarr/", "context": limits}
        ).result()
        self.labels = np.load(f"{folder}/labels.npy")
        self.batch_size, self.ahead = batch_size, ahead
        self.batches, self.pool = ReusedBatches(batch_size), ThreadPoolExecutor(workers)

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        for image, pixels in zip(batch, self.images[indices].read().result(), strict=True):
            normalise(pixels, image)
        return batch, self.labels[indices]

    def __iter__(self) -> Any:
        order = np.random.default_rng().permutation(self.images.shape[0])
        left = deque(order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size))
        ahead = deque(self.pool.submit(self.load, left.popleft()) for _ in range(min(self.ahead, len(left))))
        while ahead:
            batch, labels = ahead.popleft().result()
            if left:
                ahead.append(self.pool.submit(self.load, left.popleft()))
            yield batch, labels
            self.batches.give_back(batch)


LoadZarr.settings = {"workers": (1, 2, 3), "ahead": (2, 3, 6), "file_io": ("shared", 1, 2)}
