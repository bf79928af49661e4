"""TensorStore: google.github.io/tensorstore, a zarr array with a chunk for each photograph.

`read` reads all rows of a batch at once, with threads of its own; a pool of threads requests and normalises batches.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.peers.loader import PRESAVED, SIZE, Loader, ReusedBatches, normalise


def prepare_zarr(source: str, folder: str) -> None:
    import tensorstore

    pixels = np.load(source, mmap_mode="r")
    store = tensorstore.open(
        {
            "driver": "zarr",
            "kvstore": f"file://{folder}/photographs.zarr/",
            "metadata": {"chunks": [1, SIZE, SIZE, 3], "compressor": None},
        },
        create=True,
        dtype=tensorstore.uint8,
        shape=pixels.shape,
    ).result()
    store.write(pixels).result()


class LoadZarr:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        import cv2
        import tensorstore

        cv2.setNumThreads(1)  # the threads of the pool are the parallel ones
        limits = {"data_copy_concurrency": {"limit": threads}, "file_io_concurrency": {"limit": threads}}
        self.images = tensorstore.open(
            {"driver": "zarr", "kvstore": f"file://{folder}/photographs.zarr/", "context": limits}
        ).result()
        self.batch_size, self.batches, self.pool = batch_size, ReusedBatches(batch_size), ThreadPoolExecutor(threads)

    def load(self, indices: np.ndarray) -> Any:
        batch = self.batches.take(len(indices))
        for image, pixels in zip(batch, self.images[indices].read().result(), strict=True):
            normalise(pixels, image)
        return batch, indices

    def __iter__(self) -> Any:
        order = np.random.default_rng().permutation(self.images.shape[0])
        left = deque(order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size))
        ahead = deque(self.pool.submit(self.load, left.popleft()) for _ in range(min(3, len(left))))
        while ahead:
            batch, indices = ahead.popleft().result()
            if left:
                ahead.append(self.pool.submit(self.load, left.popleft()))
            yield batch, indices
            self.batches.give_back(batch)


LOADERS = (Loader("TensorStore, zarr", PRESAVED, LoadZarr, imports=("cv2", "tensorstore"), prepare=prepare_zarr),)
