"""LitData: github.com/Lightning-AI/litdata, "Speed up model training"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.imagenet import PIXEL_MEAN, PIXEL_SCALE, SIZE
from benchmarks.peers.loader import PRESAVED, RAW, Loader


def prepare_jpeg(source: str, folder: str) -> None:
    from litdata import optimize

    files = sorted(Path(source).glob("*/*.jpg"))

    def read(number: int) -> Any:
        return {"jpeg": files[number].read_bytes(), "number": number}

    optimize(read, list(range(len(files))), folder, num_workers=1, chunk_bytes="64MB", start_method="fork")


def load_jpeg(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import simplejpeg
    from litdata import StreamingDataLoader, StreamingDataset

    class Photographs(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            record = super().__getitem__(index)
            pixels = cv2.resize(simplejpeg.decode_jpeg(record["jpeg"]), (SIZE, SIZE))
            image = np.subtract(pixels.transpose(2, 0, 1), PIXEL_MEAN, order="C")
            image *= PIXEL_SCALE
            return image, record["number"]

    # By default it decodes the neighbours of a record with it, which a shuffled epoch has no use for.
    dataset = Photographs(folder, shuffle=True, batch_decode=0)
    return StreamingDataLoader(dataset, batch_size=batch_size, num_workers=threads, persistent_workers=True)


def prepare_pixels(source: str, folder: str) -> None:
    from litdata import optimize

    pixels = np.load(source, mmap_mode="r")

    def read(number: int) -> Any:
        return {"pixels": np.array(pixels[number]), "number": number}

    optimize(read, list(range(len(pixels))), folder, num_workers=1, chunk_bytes="64MB", start_method="fork")


def load_pixels(folder: str, batch_size: int, threads: int) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset

    class Photographs(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            record = super().__getitem__(index)
            image = np.subtract(record["pixels"].transpose(2, 0, 1), PIXEL_MEAN, order="C")
            image *= PIXEL_SCALE
            return image, record["number"]

    # By default it decodes the neighbours of a record with it, which a shuffled epoch has no use for.
    dataset = Photographs(folder, shuffle=True, batch_decode=0)
    return StreamingDataLoader(dataset, batch_size=batch_size, num_workers=threads, persistent_workers=True)


LOADERS = (
    Loader(
        "LitData, simplejpeg", RAW, load_jpeg, imports=("cv2", "simplejpeg", "litdata", "torch"), prepare=prepare_jpeg
    ),
    Loader("LitData", PRESAVED, load_pixels, imports=("litdata", "torch"), prepare=prepare_pixels),
)
