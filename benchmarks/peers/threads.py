"""numpy and the standard library alone: a pool of threads, over photographs or a memory map of one .npy.

numpy.org/doc/stable/reference/generated/numpy.memmap.html advises a map for small segments of large files, which is
what a shuffled batch reads. docs.python.org/3/library/concurrent.futures.html advises threads where calls release the
GIL, as those of simplejpeg, OpenCV and numba do.
"""

from __future__ import annotations

from typing import Any

from benchmarks.peers.loader import ReadAhead, fill_from_jpegs, fill_with_crops, open_images, open_memmap, write_memmap


def load_raw(path: str, batch_size: int, workers: int, ahead: int = 3) -> Any:
    return ReadAhead(*open_images(path, fill_from_jpegs), batch_size, workers, ahead)


def load_crops(path: str, batch_size: int, workers: int, ahead: int = 3) -> Any:
    return ReadAhead(*open_images(path, fill_with_crops), batch_size, workers, ahead)


def load_memmap(folder: str, batch_size: int, workers: int, ahead: int = 3) -> Any:
    return ReadAhead(*open_memmap(folder), batch_size, workers, ahead)


load_memmap.prepare = write_memmap
load_raw.settings = load_crops.settings = load_memmap.settings = {"workers": (1, 2, 3), "ahead": (2, 3, 6)}
