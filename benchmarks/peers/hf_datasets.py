"""Hugging Face datasets: huggingface.co/docs/datasets, "Use with PyTorch": a sampler of batches, so that `__getitem__`
reads each batch at once. In the format "arrow" ("Use with PyArrow") a batch is a table whose bytes are not copied;
`collate_fn`, in the worker, writes them into memory that the training process shares (`SharedBatches`).

huggingface.co/docs/datasets/use_with_pytorch, "Optimize data loading", advises workers ("use multiple workers") and a
`BatchSampler`, since a batch that is read at once is faster than its records; both are followed here. The rest is the
advice for torch's DataLoader, as in torch_dataloader.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from datasets import Dataset, load_from_disk
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from benchmarks.peers.loader import Fill, SharedBatches, decode, fill_from_bytes, fill_from_jpegs, list_photographs

SETTINGS = {"workers": (1, 2, 3), "prefetch_factor": (1, 2, 4), "in_order": (True, False)}


def prepare_jpeg(path: str, folder: str) -> None:
    _write(path, folder, "jpeg", Path.read_bytes)


def load_jpeg(folder: str, batch_size: int, workers: int, prefetch_factor: int = 2, in_order: bool = True) -> Any:
    return _make_loader(folder, "jpeg", fill_from_jpegs, batch_size, workers, prefetch_factor, in_order)


def prepare_pixels(path: str, folder: str) -> None:
    _write(path, folder, "pixels", lambda file: decode(file).tobytes())


def load_pixels(folder: str, batch_size: int, workers: int, prefetch_factor: int = 2, in_order: bool = True) -> Any:
    return _make_loader(folder, "pixels", fill_from_bytes, batch_size, workers, prefetch_factor, in_order)


def _write(path: str, folder: str, kept: str, read: Callable[[Path], bytes]) -> None:
    """Write what `read` returns for each photograph as the column `kept`, with its label."""

    def records() -> Any:
        for file, label in zip(*list_photographs(path), strict=True):
            yield {kept: read(file), "label": int(label)}

    Dataset.from_generator(records, cache_dir=f"{folder}/cache").save_to_disk(f"{folder}/photographs")


def _make_loader(
    folder: str, kept: str, fill: Fill, batch_size: int, workers: int, prefetch_factor: int, in_order: bool
) -> Any:
    """Return a DataLoader of the batches into which `fill` writes the images in the column `kept` of a table."""
    memory = SharedBatches(workers, batch_size, prefetch_factor)

    def collate(table: Any) -> Any:
        batch = memory.take(len(table))
        fill(batch.numpy(), (np.frombuffer(each.as_buffer(), np.uint8) for each in table[kept]))
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


load_jpeg.prepare, load_pixels.prepare = prepare_jpeg, prepare_pixels
load_jpeg.settings = load_pixels.settings = SETTINGS
