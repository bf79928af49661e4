"""WebDataset: github.com/webdataset/webdataset. The workers make the batches, which its FAQ calls more efficient, and
write them into memory that the training process shares (`SharedBatches`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
import webdataset

from benchmarks.peers.loader import SIZE, SharedBatches, decode, list_photographs, normalise

# Workers take whole shards. With eight, equally full, two or four workers have equal work.
SHARDS = 8
# Batches that a worker loads ahead; torch's default.
PREFETCH_FACTOR = 2


def prepare_jpeg(path: str, folder: str) -> None:
    files, labels = list_photographs(path)
    with webdataset.ShardWriter(f"{folder}/%02d.tar", maxcount=-(-len(files) // SHARDS)) as writer:
        for number, file in enumerate(files):
            writer.write({"__key__": f"{number:06d}", "jpg": file.read_bytes(), "cls": int(labels[number])})


def load_jpeg(folder: str, batch_size: int, workers: int) -> Any:
    batches = SharedBatches(workers, batch_size, PREFETCH_FACTOR * workers)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, (jpeg, _label) in zip(batch.numpy(), records, strict=True):
            cv2.resize(simplejpeg.decode_jpeg(jpeg), (SIZE, SIZE), dst=pixels)
            normalise(pixels, image)
        return batch, torch.tensor([int(label) for _jpeg, label in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    shards = [str(file) for file in sorted(Path(folder).glob("*.tar"))]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).to_tuple("jpg", "cls")
    dataset = dataset.batched(batch_size, collation_fn=collate)
    return webdataset.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True)


load_jpeg.prepare = prepare_jpeg


def prepare_pixels(path: str, folder: str) -> None:
    files, labels = list_photographs(path)
    with webdataset.ShardWriter(f"{folder}/%02d.tar", maxcount=-(-len(files) // SHARDS)) as writer:
        for number, file in enumerate(files):
            pixels = decode(file).tobytes()
            writer.write({"__key__": f"{number:06d}", "pixels": pixels, "cls": int(labels[number])})


def load_pixels(folder: str, batch_size: int, workers: int) -> Any:
    batches = SharedBatches(workers, batch_size, PREFETCH_FACTOR * workers)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        for image, (pixels, _label) in zip(batch.numpy(), records, strict=True):
            normalise(np.frombuffer(pixels, np.uint8).reshape(SIZE, SIZE, 3), image)
        return batch, torch.tensor([int(label) for _pixels, label in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    shards = [str(file) for file in sorted(Path(folder).glob("*.tar"))]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).to_tuple("pixels", "cls")
    dataset = dataset.batched(batch_size, collation_fn=collate)
    return webdataset.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True)


load_pixels.prepare = prepare_pixels
