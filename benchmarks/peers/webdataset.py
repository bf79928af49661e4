"""WebDataset: github.com/webdataset/webdataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.imagenet import PIXEL_MEAN, PIXEL_SCALE, SIZE
from benchmarks.peers.loader import PRESAVED, RAW, Loader

# Whole shards go to workers; so many, and equally full, that two or four workers have equal work.
SHARDS = 8
NOTE = "shuffles its shards, and records in a buffer of 1,000"


def prepare_jpeg(source: str, folder: str) -> None:
    import webdataset

    files = sorted(Path(source).glob("*/*.jpg"))
    with webdataset.ShardWriter(f"{folder}/%02d.tar", maxcount=-(-len(files) // SHARDS)) as writer:
        for number, file in enumerate(files):
            writer.write({"__key__": f"{number:06d}", "jpg": file.read_bytes(), "cls": number})


def load_jpeg(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import simplejpeg
    import webdataset

    def load(jpeg: bytes) -> Any:
        pixels = cv2.resize(simplejpeg.decode_jpeg(jpeg), (SIZE, SIZE))
        image = np.subtract(pixels.transpose(2, 0, 1), PIXEL_MEAN, order="C")
        image *= PIXEL_SCALE
        return image

    shards = [str(file) for file in sorted(Path(folder).glob("*.tar"))]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).to_tuple("jpg", "cls")
    dataset = dataset.map_tuple(load, int).batched(batch_size)
    return webdataset.WebLoader(dataset, batch_size=None, num_workers=threads, persistent_workers=True)


def prepare_npy(source: str, folder: str) -> None:
    import webdataset

    pixels = np.load(source, mmap_mode="r")
    with webdataset.ShardWriter(f"{folder}/%02d.tar", maxcount=-(-len(pixels) // SHARDS)) as writer:
        for number, each in enumerate(pixels):
            writer.write({"__key__": f"{number:06d}", "npy": np.array(each), "cls": number})


def load_npy(folder: str, batch_size: int, threads: int) -> Any:
    import webdataset

    def normalise(pixels: Any) -> Any:
        image = np.subtract(pixels.transpose(2, 0, 1), PIXEL_MEAN, order="C")
        image *= PIXEL_SCALE
        return image

    shards = [str(file) for file in sorted(Path(folder).glob("*.tar"))]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).decode().to_tuple("npy", "cls")
    dataset = dataset.map_tuple(normalise, int).batched(batch_size)
    return webdataset.WebLoader(dataset, batch_size=None, num_workers=threads, persistent_workers=True)


LOADERS = (
    Loader(
        "WebDataset, simplejpeg",
        RAW,
        load_jpeg,
        imports=("cv2", "simplejpeg", "webdataset"),
        prepare=prepare_jpeg,
        note=NOTE,
    ),
    Loader("WebDataset, npy", PRESAVED, load_npy, imports=("webdataset",), prepare=prepare_npy, note=NOTE),
)
