"""Hugging Face datasets: huggingface.co/docs/datasets, "Use with PyTorch": a sampler of batches, so that `__getitem__`
reads each batch at once. In the format "arrow" ("Use with PyArrow") a batch is a table whose bytes are not copied;
`collate_fn`, in the worker, writes them into memory that the training process shares (`SharedBatches`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.loader import PRESAVED, RAW, SIZE, Loader, SharedBatches, normalise

# Batches that a worker loads ahead; torch's default.
PREFETCH_FACTOR = 2


def prepare_jpeg(source: str, folder: str) -> None:
    from datasets import Dataset

    def read() -> Any:
        for number, file in enumerate(sorted(Path(source).glob("*/*.jpg"))):
            yield {"jpeg": file.read_bytes(), "number": number}

    Dataset.from_generator(read, cache_dir=f"{folder}/cache").save_to_disk(f"{folder}/photographs")


def load_jpeg(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import simplejpeg
    import torch
    from datasets import load_from_disk
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    memory = SharedBatches(threads, batch_size, PREFETCH_FACTOR)

    def collate(table: Any) -> Any:
        batch = memory.take(len(table))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, jpeg in zip(batch.numpy(), table["jpeg"], strict=True):
            cv2.resize(simplejpeg.decode_jpeg(np.frombuffer(jpeg.as_buffer(), np.uint8)), (SIZE, SIZE), dst=pixels)
            normalise(pixels, image)
        return batch, torch.from_numpy(table["number"].to_numpy())

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    dataset = load_from_disk(f"{folder}/photographs").with_format("arrow")
    batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
    return DataLoader(dataset, None, sampler=batches, num_workers=threads, persistent_workers=True, collate_fn=collate)


def prepare_pixels(source: str, folder: str) -> None:
    from datasets import Dataset

    def read() -> Any:
        for number, pixels in enumerate(np.load(source, mmap_mode="r")):
            yield {"pixels": pixels.tobytes(), "number": number}

    Dataset.from_generator(read, cache_dir=f"{folder}/cache").save_to_disk(f"{folder}/photographs")


def load_pixels(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import torch
    from datasets import load_from_disk
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    memory = SharedBatches(threads, batch_size, PREFETCH_FACTOR)

    def collate(table: Any) -> Any:
        batch = memory.take(len(table))
        for image, pixels in zip(batch.numpy(), table["pixels"], strict=True):
            normalise(np.frombuffer(pixels.as_buffer(), np.uint8).reshape(SIZE, SIZE, 3), image)
        return batch, torch.from_numpy(table["number"].to_numpy())

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    dataset = load_from_disk(f"{folder}/photographs").with_format("arrow")
    batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
    return DataLoader(dataset, None, sampler=batches, num_workers=threads, persistent_workers=True, collate_fn=collate)


LOADERS = (
    Loader(
        "HF datasets, simplejpeg",
        RAW,
        load_jpeg,
        imports=("cv2", "simplejpeg", "datasets", "torch"),
        prepare=prepare_jpeg,
    ),
    Loader("HF datasets", PRESAVED, load_pixels, imports=("cv2", "datasets", "torch"), prepare=prepare_pixels),
)
