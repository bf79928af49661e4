"""WebDataset: github.com/webdataset/webdataset. The workers make the batches, which its FAQ calls more efficient, and
write them into memory that the training process shares (`SharedBatches`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.loader import PRESAVED, RAW, SIZE, Loader, SharedBatches, normalise

# Workers take whole shards. With eight, equally full, two or four workers have equal work.
SHARDS = 8
# Batches that a worker loads ahead; torch's default.
PREFETCH_FACTOR = 2
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
    import torch
    import webdataset

    batches = SharedBatches(threads, batch_size, PREFETCH_FACTOR * threads)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, (jpeg, _number) in zip(batch.numpy(), records, strict=True):
            cv2.resize(simplejpeg.decode_jpeg(jpeg), (SIZE, SIZE), dst=pixels)
            normalise(pixels, image)
        return batch, torch.tensor([int(number) for _jpeg, number in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    shards = [str(file) for file in sorted(Path(folder).glob("*.tar"))]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).to_tuple("jpg", "cls")
    dataset = dataset.batched(batch_size, collation_fn=collate)
    return webdataset.WebLoader(dataset, batch_size=None, num_workers=threads, persistent_workers=True)


def prepare_pixels(source: str, folder: str) -> None:
    import webdataset

    images = np.load(source, mmap_mode="r")
    with webdataset.ShardWriter(f"{folder}/%02d.tar", maxcount=-(-len(images) // SHARDS)) as writer:
        for number, pixels in enumerate(images):
            writer.write({"__key__": f"{number:06d}", "pixels": pixels.tobytes(), "cls": number})


def load_pixels(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import torch
    import webdataset

    batches = SharedBatches(threads, batch_size, PREFETCH_FACTOR * threads)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        for image, (pixels, _number) in zip(batch.numpy(), records, strict=True):
            normalise(np.frombuffer(pixels, np.uint8).reshape(SIZE, SIZE, 3), image)
        return batch, torch.tensor([int(number) for _pixels, number in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    shards = [str(file) for file in sorted(Path(folder).glob("*.tar"))]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).to_tuple("pixels", "cls")
    dataset = dataset.batched(batch_size, collation_fn=collate)
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
    Loader("WebDataset", PRESAVED, load_pixels, imports=("cv2", "webdataset"), prepare=prepare_pixels, note=NOTE),
)
