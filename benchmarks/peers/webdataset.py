"""WebDataset: github.com/webdataset/webdataset. The workers make the batches, which its FAQ calls more efficient, and
write them into memory that the training process shares (`SharedBatches`).

webdataset.github.io/webdataset/sharding/ advises many shards, which the workers share, `shardshuffle`, and batches that
are made in the data set, before the DataLoader. All are followed here.
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
SETTINGS = {"workers": (1, 2, 4), "prefetch_factor": (1, 2, 4)}


def prepare_jpeg(path: str, folder: str) -> None:
    files, labels = list_photographs(path)
    with webdataset.ShardWriter(f"{folder}/%02d.tar", maxcount=-(-len(files) // SHARDS)) as writer:
        for number, file in enumerate(files):
            writer.write({"__key__": f"{number:06d}", "jpg": file.read_bytes(), "cls": int(labels[number])})


def load_jpeg(folder: str, batch_size: int, workers: int, prefetch_factor: int = 2) -> Any:
    batches = SharedBatches(workers, batch_size, prefetch_factor * workers)

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
    return webdataset.WebLoader(
        dataset, batch_size=None, num_workers=workers, prefetch_factor=prefetch_factor, persistent_workers=True
    )


load_jpeg.prepare = prepare_jpeg


def prepare_pixels(path: str, folder: str) -> None:
    files, labels = list_photographs(path)
    with webdataset.ShardWriter(f"{folder}/%02d.tar", maxcount=-(-len(files) // SHARDS)) as writer:
        for number, file in enumerate(files):
            pixels = decode(file).tobytes()
            writer.write({"__key__": f"{number:06d}", "pixels": pixels, "cls": int(labels[number])})


def load_pixels(folder: str, batch_size: int, workers: int, prefetch_factor: int = 2) -> Any:
    batches = SharedBatches(workers, batch_size, prefetch_factor * workers)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        for image, (pixels, _label) in zip(batch.numpy(), records, strict=True):
            normalise(np.frombuffer(pixels, np.uint8).reshape(SIZE, SIZE, 3), image)
        return batch, torch.tensor([int(label) for _pixels, label in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    shards = [str(file) for file in sorted(Path(folder).glob("*.tar"))]
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).to_tuple("pixels", "cls")
    dataset = dataset.batched(batch_size, collation_fn=collate)
    return webdataset.WebLoader(
        dataset, batch_size=None, num_workers=workers, prefetch_factor=prefetch_factor, persistent_workers=True
    )


load_pixels.prepare = prepare_pixels
load_jpeg.settings = load_pixels.settings = SETTINGS
