"""LitData: github.com/Lightning-AI/litdata, "Speed up model training". Records stay bytes until `collate_fn`, in the
worker, writes them into memory that the training process shares (`SharedBatches`).

github.com/Lightning-AI/litdata#readme advises to optimize data into chunks, and to raise the number of workers; its
`max_pre_download` is for chunks that are downloaded, and these are local. `item_shuffle_window`, by default 256 records
at a time within a chunk, decides how far apart the records are that are read one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize

from benchmarks.peers.loader import Fill, SharedBatches, decode, fill_from_bytes, fill_from_jpegs, list_photographs

SETTINGS = {"workers": (1, 2, 3), "prefetch_factor": (1, 2, 4), "item_shuffle_window": ("auto", "full")}


def prepare_jpeg(path: str, folder: str) -> None:
    _write(path, folder, "jpeg", Path.read_bytes)


def load_jpeg(
    folder: str, batch_size: int, workers: int, prefetch_factor: int = 2, item_shuffle_window: str = "auto"
) -> Any:
    return _make_loader(folder, "jpeg", fill_from_jpegs, batch_size, workers, prefetch_factor, item_shuffle_window)


def prepare_pixels(path: str, folder: str) -> None:
    _write(path, folder, "pixels", lambda file: decode(file).tobytes())


def load_pixels(
    folder: str, batch_size: int, workers: int, prefetch_factor: int = 2, item_shuffle_window: str = "auto"
) -> Any:
    return _make_loader(folder, "pixels", fill_from_bytes, batch_size, workers, prefetch_factor, item_shuffle_window)


def _write(path: str, folder: str, kept: str, read: Callable[[Path], bytes]) -> None:
    """Write what `read` returns for each photograph as the field `kept`, with its label."""
    files, labels = list_photographs(path)

    def record(number: int) -> dict[str, Any]:
        return {kept: read(files[number]), "label": int(labels[number])}

    optimize(record, list(range(len(files))), folder, num_workers=1, chunk_bytes="64MB", start_method="fork")


def _make_loader(
    folder: str, kept: str, fill: Fill, batch_size: int, workers: int, prefetch_factor: int, item_shuffle_window: str
) -> Any:
    """Return a loader of the batches into which `fill` writes the images in the field `kept` of records."""
    batches = SharedBatches(workers, batch_size, prefetch_factor * workers)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        fill(batch.numpy(), (record[kept] for record in records))
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


load_jpeg.prepare, load_pixels.prepare = prepare_jpeg, prepare_pixels
load_jpeg.settings = load_pixels.settings = SETTINGS
