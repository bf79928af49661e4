"""numpy and the standard library alone: thirty lines of threads, over photographs or a memory map of one .npy.

numpy.org/doc/stable/reference/generated/numpy.memmap.html advises a map for small segments of large files, which is
what a shuffled batch reads. docs.python.org/3/library/concurrent.futures.html advises threads where calls release the
GIL, as those of simplejpeg, OpenCV and numba do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.loader import (
    ReadAhead,
    fill_from_jpegs,
    fill_from_pixels,
    fill_with_crops,
    list_photographs,
    write_memmap,
)


def load_raw(path: str, batch_size: int, workers: int, ahead: int = 3) -> Any:
    files, labels = list_photographs(path)

    def fill(batch: np.ndarray, indices: np.ndarray) -> None:
        fill_from_jpegs(batch, (files[index].read_bytes() for index in indices))

    return ReadAhead(labels, fill, batch_size, workers, ahead)


def load_crops(path: str, batch_size: int, workers: int, ahead: int = 3) -> Any:
    files, labels = list_photographs(path)

    def fill(batch: np.ndarray, indices: np.ndarray) -> None:
        fill_with_crops(batch, (files[index].read_bytes() for index in indices))

    return ReadAhead(labels, fill, batch_size, workers, ahead)


def load_memmap(folder: str, batch_size: int, workers: int, ahead: int = 3) -> Any:
    images, labels = np.load(f"{folder}/images.npy", mmap_mode="r"), np.load(f"{folder}/labels.npy")

    def fill(batch: np.ndarray, indices: np.ndarray) -> None:
        fill_from_pixels(batch, (images[index] for index in indices))

    return ReadAhead(labels, fill, batch_size, workers, ahead)


load_memmap.prepare = write_memmap
load_raw.settings = load_crops.settings = load_memmap.settings = {"workers": (1, 2, 3), "ahead": (2, 3, 6)}
