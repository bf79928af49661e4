"""SPDL: facebookresearch.github.io/spdl, "Building High-Performance DataLoaders"."""

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
        self.batch_size, self.threads = batch_size, threads

    def load(self, index: int) -> Any:
        import cv2
        import simplejpeg

        pixels = cv2.resize(simplejpeg.decode_jpeg(self.files[index].read_bytes()), (SIZE, SIZE))
        image = np.subtract(pixels.transpose(2, 0, 1), PIXEL_MEAN, order="C")
        image *= PIXEL_SCALE
        return image, index

    def collate(self, records: list[Any]) -> Any:
        images, indices = zip(*records, strict=True)
        return np.stack(images), indices

    def __iter__(self) -> Any:
        from spdl.pipeline import PipelineBuilder

        pipeline = (
            PipelineBuilder()
            .add_source(np.random.default_rng().permutation(len(self.files)).tolist())
            .pipe(self.load, concurrency=self.threads)
            .aggregate(self.batch_size)
            .pipe(self.collate)
            .add_sink(3)
            .build(num_threads=self.threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()


def prepare_memmap(source: str, folder: str) -> None:
    shutil.copy2(source, Path(folder) / "images.npy")


class LoadMemmap:
    def __init__(self, folder: str, batch_size: int, threads: int) -> None:
        self.images = np.load(f"{folder}/images.npy", mmap_mode="r")
        self.batch_size, self.threads = batch_size, threads

    def load(self, indices: list[int]) -> Any:
        batch = np.empty((len(indices), 3, SIZE, SIZE), np.float32)
        for image, index in zip(batch, indices, strict=True):
            np.subtract(self.images[index].transpose(2, 0, 1), PIXEL_MEAN, out=image)
            image *= PIXEL_SCALE
        return batch, indices

    def __iter__(self) -> Any:
        from spdl.pipeline import PipelineBuilder

        pipeline = (
            PipelineBuilder()
            .add_source(np.random.default_rng().permutation(len(self.images)).tolist())
            .aggregate(self.batch_size)
            .pipe(self.load, concurrency=self.threads)
            .add_sink(3)
            .build(num_threads=self.threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()


LOADERS = (
    Loader("SPDL, simplejpeg", RAW, LoadRaw, imports=("cv2", "simplejpeg", "spdl.pipeline")),
    Loader("SPDL, memmap", PRESAVED, LoadMemmap, imports=("spdl.pipeline",), prepare=prepare_memmap),
)
