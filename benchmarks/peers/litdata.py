"""LitData: github.com/Lightning-AI/litdata, "Speed up model training". Records stay bytes until `collate_fn`, in the
worker, writes them into memory that the training process shares (`SharedBatches`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.loader import PRESAVED, RAW, SIZE, Loader, SharedBatches, normalise

# Batches that a worker loads ahead; torch's default.
PREFETCH_FACTOR = 2


def prepare_jpeg(source: str, folder: str) -> None:
    from litdata import optimize

    files = sorted(Path(source).glob("*/*.jpg"))

    def read(number: int) -> Any:
        return {"jpeg": files[number].read_bytes(), "number": number}

    optimize(read, list(range(len(files))), folder, num_workers=1, chunk_bytes="64MB", start_method="fork")


def load_jpeg(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import simplejpeg
    import torch
    from litdata import StreamingDataLoader, StreamingDataset

    batches = SharedBatches(threads, batch_size, PREFETCH_FACTOR * threads)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, record in zip(batch.numpy(), records, strict=True):
            cv2.resize(simplejpeg.decode_jpeg(record["jpeg"]), (SIZE, SIZE), dst=pixels)
            normalise(pixels, image)
        return batch, torch.tensor([record["number"] for record in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    # By default it decodes the neighbours of a record with it, which a shuffled epoch has no use for.
    dataset = StreamingDataset(folder, shuffle=True, batch_decode=0)
    return StreamingDataLoader(
        dataset, batch_size=batch_size, num_workers=threads, persistent_workers=True, collate_fn=collate
    )


def prepare_pixels(source: str, folder: str) -> None:
    from litdata import optimize

    images = np.load(source, mmap_mode="r")

    def read(number: int) -> Any:
        return {"pixels": images[number].tobytes(), "number": number}

    optimize(read, list(range(len(images))), folder, num_workers=1, chunk_bytes="64MB", start_method="fork")


def load_pixels(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import torch
    from litdata import StreamingDataLoader, StreamingDataset

    batches = SharedBatches(threads, batch_size, PREFETCH_FACTOR * threads)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        for image, record in zip(batch.numpy(), records, strict=True):
            normalise(np.frombuffer(record["pixels"], np.uint8).reshape(SIZE, SIZE, 3), image)
        return batch, torch.tensor([record["number"] for record in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    # By default it decodes the neighbours of a record with it, which a shuffled epoch has no use for.
    dataset = StreamingDataset(folder, shuffle=True, batch_decode=0)
    return StreamingDataLoader(
        dataset, batch_size=batch_size, num_workers=threads, persistent_workers=True, collate_fn=collate
    )


LOADERS = (
    Loader(
        "LitData, simplejpeg", RAW, load_jpeg, imports=("cv2", "simplejpeg", "litdata", "torch"), prepare=prepare_jpeg
    ),
    Loader("LitData", PRESAVED, load_pixels, imports=("cv2", "litdata", "torch"), prepare=prepare_pixels),
)
