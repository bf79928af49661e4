"""MosaicML Streaming: docs.mosaicml.com/projects/streaming, "Quick start". Records stay bytes until `collate_fn`, in
the worker, writes them into memory that the training process shares (`SharedBatches`).

docs.mosaicml.com/projects/streaming/en/stable/distributed_training/performance_tuning.html says that the defaults "give
great performance out-of-the-box"; if not, it advises more workers, a larger `predownload`, which shards that are local
do not need, and other algorithms of shuffling: "py1s" instead of "py1e".
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import torch
from torch.utils.data import DataLoader

from benchmarks.peers.loader import (
    Fill,
    SharedBatches,
    decode,
    fill_from_bytes,
    fill_from_jpegs,
    import_torchvision,
    list_photographs,
)

import_torchvision()  # whose base class `streaming` uses

from streaming import MDSWriter, StreamingDataset  # noqa: E402 - it imports torchvision
from streaming.base.util import clean_stale_shared_memory  # noqa: E402

SETTINGS = {"workers": (1, 2, 3), "prefetch_factor": (1, 2, 4), "shuffle_algo": ("py1e", "py1s")}


def prepare_jpeg(path: str, folder: str) -> None:
    _write(path, folder, "jpeg", Path.read_bytes)


def load_jpeg(folder: str, batch_size: int, workers: int, prefetch_factor: int = 2, shuffle_algo: str = "py1e") -> Any:
    return _make_loader(folder, "jpeg", fill_from_jpegs, batch_size, workers, prefetch_factor, shuffle_algo)


def prepare_pixels(path: str, folder: str) -> None:
    _write(path, folder, "pixels", lambda file: decode(file).tobytes())


def load_pixels(
    folder: str, batch_size: int, workers: int, prefetch_factor: int = 2, shuffle_algo: str = "py1e"
) -> Any:
    return _make_loader(folder, "pixels", fill_from_bytes, batch_size, workers, prefetch_factor, shuffle_algo)


def _write(path: str, folder: str, kept: str, read: Callable[[Path], bytes]) -> None:
    """Write what `read` returns for each photograph as the field `kept`, with its label."""
    with MDSWriter(out=folder, columns={kept: "bytes", "label": "int"}) as writer:
        for file, label in zip(*list_photographs(path), strict=True):
            writer.write({kept: read(file), "label": int(label)})


def _make_loader(
    folder: str, kept: str, fill: Fill, batch_size: int, workers: int, prefetch_factor: int, shuffle_algo: str
) -> Any:
    """Return a DataLoader of the batches into which `fill` writes the images in the field `kept` of records."""
    batches = SharedBatches(workers, batch_size, prefetch_factor * workers)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        fill(batch.numpy(), (record[kept] for record in records))
        return batch, torch.tensor([record["label"] for record in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=folder, shuffle=True, shuffle_algo=shuffle_algo, batch_size=batch_size)
    return DataLoader(
        dataset,
        batch_size,
        num_workers=workers,
        collate_fn=collate,
        prefetch_factor=prefetch_factor,
        persistent_workers=True,
    )


load_jpeg.prepare, load_pixels.prepare = prepare_jpeg, prepare_pixels
load_jpeg.settings = load_pixels.settings = SETTINGS
