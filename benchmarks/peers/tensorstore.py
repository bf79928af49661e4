"""TensorStore: google.github.io/tensorstore, a zarr array with a chunk for each photograph."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.imagenet import PIXEL_MEAN, PIXEL_SCALE, SIZE
from benchmarks.peers.loader import PRESAVED, Loader


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
        import tensorstore

        limits = {"data_copy_concurrency": {"limit": threads}, "file_io_concurrency": {"limit": threads}}
        self.images = tensorstore.open(
            {"driver": "zarr", "kvstore": f"file://{folder}/photographs.zarr/", "context": limits}
        ).result()
        self.batch_size = batch_size

    def __iter__(self) -> Any:
        order = np.random.default_rng().permutation(self.images.shape[0])
        batches = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        ahead = [self.images[indices].read() for indices in batches[:2]]
        for number, indices in enumerate(batches):
            pixels = ahead.pop(0).result()
            ahead += [self.images[following].read() for following in batches[number + 2 : number + 3]]
            batch = np.empty((len(indices), 3, SIZE, SIZE), np.float32)
            for image, each in zip(batch, pixels, strict=True):
                np.subtract(each.transpose(2, 0, 1), PIXEL_MEAN, out=image)
                image *= PIXEL_SCALE
            yield batch, indices


LOADERS = (Loader("TensorStore, zarr", PRESAVED, LoadZarr, imports=("tensorstore",), prepare=prepare_zarr),)
