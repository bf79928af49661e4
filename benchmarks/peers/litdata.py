"""LitData: github.com/Lightning-AI/litdata, "Speed up model training". Records stay bytes until `collate_fn`, in the
worker, writes them into memory that the training process shares (`SharedBatches`).

github.com/Lightning-AI/litdata#readme advises to optimize data into chunks, and to raise the number of workers; its
`max_pre_download` is for chunks that are downloaded, and these are local. `item_shuffle_window`, by default 256 records
at a time within a chunk, decides how far apart the records are that are read one after the other.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize

from benchmarks.peers.loader import SIZE, SharedBatches, decode, list_photographs, normalise

SETTINGS = {"workers": (1, 2, 3), "prefetch_factor": (1, 2, 4), "item_shuffle_window": ("auto", "full")}


def prepare_jpeg(path: str, folder: str) -> None:
    files, labels = list_photographs(path)

    def read(number: int) -> Any:
        return {"jpeg": files[number].read_bytes(), "label": int(labels[number])}

    optimize(read, list(range(len(files))), folder, num_workers=1, chunk_bytes="64MB", start_method="fork")


def load_jpeg(
    folder: str, batch_size: int, workers: int, prefetch_factor: int = 2, item_shuffle_window: str = "auto"
) -> Any:
    batches = SharedBatches(workers, batch_size, prefetch_factor * workers)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, record in zip(batch.numpy(), records, strict=True):
            cv2.resize(simplejpeg.decode_jpeg(record["jpeg"]), (SIZE, SIZE), dst=pixels)
            normalise(pixels, image)
        return batch, torch.tensor([record["label"] for record in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    # By default it decodes the neighbours of a record with it, which a shuffled epoch has no use for.
    dataset = StreamingDataset(folder, shuffle=True, batch_decode=0, item_shuffle_window=item_shuffle_window)
    return StreamingDataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=collate,
        prefetch_factor=prefetch_factor,
        persistent_workers=True,
    )


load_jpeg.prepare = prepare_jpeg


def prepare_pixels(path: str, folder: str) -> None:
    files, labels = list_photographs(path)

    def read(number: int) -> Any:
        return {"pixels": decode(files[number]).tobytes(), "label": int(labels[number])}

    optimize(read, list(range(len(files))), folder, num_workers=1, chunk_bytes="64MB", start_method="fork")


def load_pixels(
    folder: str, batch_size: int, workers: int, prefetch_factor: int = 2, item_shuffle_window: str = "auto"
) -> Any:
    batches = SharedBatches(workers, batch_size, prefetch_factor * workers)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        for image, record in zip(batch.numpy(), records, strict=True):
            normalise(np.frombuffer(record["pixels"], np.uint8).reshape(SIZE, SIZE, 3), image)
        return batch, torch.tensor([record["label"] for record in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    # By default it decodes the neighbours of a record with it, which a shuffled epoch has no use for.
    dataset = StreamingDataset(folder, shuffle=True, batch_decode=0, item_shuffle_window=item_shuffle_window)
    return StreamingDataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=collate,
        prefetch_factor=prefetch_factor,
        persistent_workers=True,
    )


load_pixels.prepare = prepare_pixels
load_jpeg.settings = load_pixels.settings = SETTINGS
