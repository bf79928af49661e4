"""numpy alone: a memory map of one .npy, in the thread that trains."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.imagenet import PIXEL_MEAN, PIXEL_SCALE, SIZE
from benchmarks.peers.loader import PRESAVED, Loader


def prepare_memmap(source: str, folder: str) -> None:
    shutil.copy2(source, Path(folder) / "images.npy")


class LoadMemmap:
    def __init__(self, folder: str, batch_size: int, _threads: int) -> None:
        self.images = np.load(f"{folder}/images.npy", mmap_mode="r")
        self.batch_size = batch_size

    def __iter__(self) -> Any:
        order = np.random.default_rng().permutation(len(self.images))
        for start in range(0, len(order), self.batch_size):
            indices = order[start : start + self.batch_size]
            batch = np.empty((len(indices), 3, SIZE, SIZE), np.float32)
            for image, index in zip(batch, indices, strict=True):
                np.subtract(self.images[index].transpose(2, 0, 1), PIXEL_MEAN, out=image)
                image *= PIXEL_SCALE
            yield batch, indices


LOADERS = (Loader("numpy memmap", PRESAVED, LoadMemmap, prepare=prepare_memmap, note="one thread, nothing ahead"),)
