"""MosaicML Streaming: docs.mosaicml.com/projects/streaming, "Quick start". Records stay bytes until `collate_fn`, in
the worker, writes them into memory that the training process shares (`SharedBatches`).
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.loader import PRESAVED, RAW, SIZE, Loader, SharedBatches, normalise

# Batches that a worker loads ahead; torch's default.
PREFETCH_FACTOR = 2


def prepare_jpeg(source: str, folder: str) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=folder, columns={"jpeg": "bytes", "number": "int"}) as writer:
        for number, file in enumerate(sorted(Path(source).glob("*/*.jpg"))):
            writer.write({"jpeg": file.read_bytes(), "number": number})


def load_jpeg(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import simplejpeg
    import torch
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    batches = SharedBatches(threads, batch_size, PREFETCH_FACTOR * threads)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        pixels = np.empty((SIZE, SIZE, 3), np.uint8)
        for image, record in zip(batch.numpy(), records, strict=True):
            cv2.resize(simplejpeg.decode_jpeg(record["jpeg"]), (SIZE, SIZE), dst=pixels)
            normalise(pixels, image)
        return batch, torch.tensor([record["number"] for record in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=batch_size)
    return DataLoader(dataset, batch_size, num_workers=threads, persistent_workers=True, collate_fn=collate)


def prepare_pixels(source: str, folder: str) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=folder, columns={"pixels": "bytes", "number": "int"}) as writer:
        for number, pixels in enumerate(np.load(source, mmap_mode="r")):
            writer.write({"pixels": pixels.tobytes(), "number": number})


def load_pixels(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import torch
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    batches = SharedBatches(threads, batch_size, PREFETCH_FACTOR * threads)

    def collate(records: Any) -> Any:
        batch = batches.take(len(records))
        for image, record in zip(batch.numpy(), records, strict=True):
            normalise(np.frombuffer(record["pixels"], np.uint8).reshape(SIZE, SIZE, 3), image)
        return batch, torch.tensor([record["number"] for record in records])

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    clean_stale_shared_memory()
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=batch_size)
    return DataLoader(dataset, batch_size, num_workers=threads, persistent_workers=True, collate_fn=collate)


def import_torchvision() -> None:
    """Import torchvision, whose base class `streaming` uses, beside a torch for the CPU alone.

    PyPI's torchvision is built for CUDA. Without CUDA its operators do not load, and its import ends at `nms` and
    `qnms`, which it registers in any case. Nothing here calls them, so it is enough to declare them.
    """
    import torch

    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        DECLARATIONS.append(library)


# Declarations of operators go when their library does.
DECLARATIONS: list[Any] = []
IMPORTS = ("benchmarks.peers.mosaicml:import_torchvision", "cv2", "streaming")

LOADERS = (
    Loader("MosaicML, simplejpeg", RAW, load_jpeg, imports=(*IMPORTS, "simplejpeg"), prepare=prepare_jpeg),
    Loader("MosaicML", PRESAVED, load_pixels, imports=IMPORTS, prepare=prepare_pixels),
)
