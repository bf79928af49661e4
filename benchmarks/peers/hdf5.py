"""h5py: docs.h5py.org, `Dataset.read_direct`, because an index of many rows is read element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.imagenet import PIXEL_MEAN, PIXEL_SCALE, SIZE
from benchmarks.peers.loader import PRESAVED, Loader


def prepare_hdf5(source: str, folder: str) -> None:
    import h5py

    with h5py.File(f"{folder}/photographs.h5", "w") as file:
        file["images"] = np.load(source, mmap_mode="r")


class LoadHdf5:
    def __init__(self, folder: str, batch_size: int, _threads: int) -> None:
        import h5py

        self.images = h5py.File(f"{folder}/photographs.h5")["images"]
        self.batch_size = batch_size

    def __iter__(self) -> Any:
        order = np.random.default_rng().permutation(len(self.images))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for start in range(0, len(order), self.batch_size):
            indices = order[start : start + self.batch_size]
            batch = np.empty((len(indices), 3, SIZE, SIZE), np.float32)
            for image, index in zip(batch, indices, strict=True):
                self.images.read_direct(pixels, np.s_[index])
                np.subtract(pixels.transpose(2, 0, 1), PIXEL_MEAN, out=image)
                image *= PIXEL_SCALE
            yield batch, indices


LOADERS = (
    Loader(
        "h5py, read_direct",
        PRESAVED,
        LoadHdf5,
        imports=("h5py",),
        prepare=prepare_hdf5,
        note="one thread, nothing ahead",
    ),
)
