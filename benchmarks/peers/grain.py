"""Grain: google-grain.readthedocs.io, "Dataset basics"."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.imagenet import PIXEL_MEAN, PIXEL_SCALE, SIZE
from benchmarks.peers.loader import PRESAVED, RAW, Loader


class LoadRaw:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        self.files = sorted(Path(folder).glob("*/*.jpg"))
        self.batch_size, self.threads, self.epoch = batch_size, threads, 0

    def load(self, index: int) -> Any:
        import cv2
        import simplejpeg

        pixels = cv2.resize(simplejpeg.decode_jpeg(self.files[index].read_bytes()), (SIZE, SIZE))
        image = np.subtract(pixels.transpose(2, 0, 1), PIXEL_MEAN, order="C")
        image *= PIXEL_SCALE
        return image, index

    def __iter__(self) -> Any:
        import grain

        self.epoch += 1
        dataset = grain.MapDataset.range(len(self.files)).shuffle(self.epoch).map(self.load).batch(self.batch_size)
        return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=self.threads, prefetch_buffer_size=3)))


def prepare_memmap(source: str, folder: str) -> None:
    shutil.copy2(source, Path(folder) / "images.npy")


class LoadMemmap:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        self.images = np.load(f"{folder}/images.npy", mmap_mode="r")
        self.batch_size, self.threads, self.epoch = batch_size, threads, 0

    def load(self, index: int) -> Any:
        image = np.subtract(self.images[index].transpose(2, 0, 1), PIXEL_MEAN, order="C")
        image *= PIXEL_SCALE
        return image, index

    def __iter__(self) -> Any:
        import grain

        self.epoch += 1
        dataset = grain.MapDataset.range(len(self.images)).shuffle(self.epoch).map(self.load).batch(self.batch_size)
        return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=self.threads, prefetch_buffer_size=3)))


LOADERS = (
    Loader("Grain, simplejpeg", RAW, LoadRaw, imports=("cv2", "simplejpeg", "grain")),
    Loader("Grain, memmap", PRESAVED, LoadMemmap, imports=("grain",), prepare=prepare_memmap),
)
