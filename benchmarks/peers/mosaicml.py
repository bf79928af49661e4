"""MosaicML Streaming: docs.mosaicml.com/projects/streaming, "Quick start". Records stay bytes until `collate_fn`, in
the worker, writes them into memory that the training process shares (`SharedBatches`).
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from benchmarks.peers.loader import SIZE, SharedBatches, decode, list_photographs, normalise

# Batches that a worker loads ahead; torch's default.
PREFETCH_FACTOR = 2


def prepare_jpeg(path: str, folder: str) -> None:
    with MDSWriter(out=folder, columns={"jpeg": "bytes", "label": "int"}) as writer:
        for file, label in zip(*list_photographs(path), strict=True):
            writer.write({"jpeg": file.read_bytes(), "label": int(label)})


def load_jpeg(folder: str, batch_size: int, workers: int) -> Any:
    batches = SharedBatches(workers, batch_size, PREFETCH_FACTOR * workers)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, record in zip(batch.numpy(), records, strict=True):
            cv2.resize(simplejpeg.decode_jpeg(record["jpeg"]), (SIZE, SIZE), dst=pixels)
            normalise(pixels, image)
        return batch, torch.tensor([record["label"] for record in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=batch_size)
    return DataLoader(dataset, batch_size, num_workers=workers, persistent_workers=True, collate_fn=collate)


load_jpeg.prepare = prepare_jpeg


def prepare_pixels(path: str, folder: str) -> None:
    with MDSWriter(out=folder, columns={"pixels": "bytes", "label": "int"}) as writer:
        for file, label in zip(*list_photographs(path), strict=True):
            writer.write({"pixels": decode(file).tobytes(), "label": int(label)})


def load_pixels(folder: str, batch_size: int, workers: int) -> Any:
    batches = SharedBatches(workers, batch_size, PREFETCH_FACTOR * workers)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        for image, record in zip(batch.numpy(), records, strict=True):
            normalise(np.frombuffer(record["pixels"], np.uint8).reshape(SIZE, SIZE, 3), image)
        return batch, torch.tensor([record["label"] for record in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=batch_size)
    return DataLoader(dataset, batch_size, num_workers=workers, persistent_workers=True, collate_fn=collate)


load_pixels.prepare = prepare_pixels
