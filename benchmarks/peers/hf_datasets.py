"""Hugging Face datasets: huggingface.co/docs/datasets, "Use with PyTorch": a sampler of batches, so that `__getitem__`
reads each batch at once. In the format "arrow" ("Use with PyArrow") a batch is a table whose bytes are not copied;
`collate_fn`, in the worker, writes them into memory that the training process shares (`SharedBatches`).

huggingface.co/docs/datasets/use_with_pytorch, "Optimize data loading", advises workers ("use multiple workers") and a
`BatchSampler`, since a batch that is read at once is faster than its records; both are followed here. The rest is the
advice for torch's DataLoader, as in torch_dataloader.py.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from datasets import Dataset, load_from_disk
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from benchmarks.peers.loader import SIZE, SharedBatches, decode, list_photographs, normalise

SETTINGS = {"workers": (1, 2, 3), "prefetch_factor": (1, 2, 4), "in_order": (True, False)}


def prepare_jpeg(path: str, folder: str) -> None:
    def read() -> Any:
        for file, label in zip(*list_photographs(path), strict=True):
            yield {"jpeg": file.read_bytes(), "label": int(label)}

    Dataset.from_generator(read, cache_dir=f"{folder}/cache").save_to_disk(f"{folder}/photographs")


def load_jpeg(folder: str, batch_size: int, workers: int, prefetch_factor: int = 2, in_order: bool = True) -> Any:
    memory = SharedBatches(workers, batch_size, prefetch_factor)

    def collate(table: Any) -> Any:
        batch = memory.take(len(table))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, jpeg in zip(batch.numpy(), table["jpeg"], strict=True):
            cv2.resize(simplejpeg.decode_jpeg(np.frombuffer(jpeg.as_buffer(), np.uint8)), (SIZE, SIZE), dst=pixels)
            normalise(pixels, image)
        return batch, torch.from_numpy(table["label"].to_numpy())

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    dataset = load_from_disk(f"{folder}/photographs").with_format("arrow")
    batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=batches,
        num_workers=workers,
        collate_fn=collate,
        prefetch_factor=prefetch_factor,
        in_order=in_order,
        persistent_workers=True,
    )


load_jpeg.prepare = prepare_jpeg


def prepare_pixels(path: str, folder: str) -> None:
    def read() -> Any:
        for file, label in zip(*list_photographs(path), strict=True):
            yield {"pixels": decode(file).tobytes(), "label": int(label)}

    Dataset.from_generator(read, cache_dir=f"{folder}/cache").save_to_disk(f"{folder}/photographs")


def load_pixels(folder: str, batch_size: int, workers: int, prefetch_factor: int = 2, in_order: bool = True) -> Any:
    memory = SharedBatches(workers, batch_size, prefetch_factor)

    def collate(table: Any) -> Any:
        batch = memory.take(len(table))
        for image, pixels in zip(batch.numpy(), table["pixels"], strict=True):
            normalise(np.frombuffer(pixels.as_buffer(), np.uint8).reshape(SIZE, SIZE, 3), image)
        return batch, torch.from_numpy(table["label"].to_numpy())

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    dataset = load_from_disk(f"{folder}/photographs").with_format("arrow")
    batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=batches,
        num_workers=workers,
        collate_fn=collate,
        prefetch_factor=prefetch_factor,
        in_order=in_order,
        persistent_workers=True,
    )


load_pixels.prepare = prepare_pixels
load_jpeg.settings = load_pixels.settings = SETTINGS
