"""MosaicML Streaming: docs.mosaicml.com/projects/streaming, "Quick start"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.imagenet import PIXEL_MEAN, PIXEL_SCALE, SIZE
from benchmarks.peers.loader import PRESAVED, RAW, Loader


def prepare_jpeg(source: str, folder: str) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=folder, columns={"jpeg": "bytes", "number": "int"}) as writer:
        for number, file in enumerate(sorted(Path(source).glob("*/*.jpg"))):
            writer.write({"jpeg": file.read_bytes(), "number": number})


def load_jpeg(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import simplejpeg
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    class Photographs(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            record = super().__getitem__(index)
            pixels = cv2.resize(simplejpeg.decode_jpeg(record["jpeg"]), (SIZE, SIZE))
            image = np.subtract(pixels.transpose(2, 0, 1), PIXEL_MEAN, order="C")
            image *= PIXEL_SCALE
            return image, record["number"]

    clean_stale_shared_memory()
    dataset = Photographs(local=folder, shuffle=True, batch_size=batch_size)
    return DataLoader(dataset, batch_size, num_workers=threads, persistent_workers=True)


def prepare_pixels(source: str, folder: str) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=folder, columns={"pixels": f"ndarray:uint8:{SIZE},{SIZE},3", "number": "int"}) as writer:
        for number, pixels in enumerate(np.load(source, mmap_mode="r")):
            writer.write({"pixels": np.array(pixels), "number": number})


def load_pixels(folder: str, batch_size: int, threads: int) -> Any:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    class Photographs(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            record = super().__getitem__(index)
            image = np.subtract(record["pixels"].transpose(2, 0, 1), PIXEL_MEAN, order="C")
            image *= PIXEL_SCALE
            return image, record["number"]

    clean_stale_shared_memory()
    dataset = Photographs(local=folder, shuffle=True, batch_size=batch_size)
    return DataLoader(dataset, batch_size, num_workers=threads, persistent_workers=True)


LOADERS = (
    Loader("MosaicML, simplejpeg", RAW, load_jpeg, imports=("cv2", "simplejpeg", "streaming"), prepare=prepare_jpeg),
    Loader("MosaicML", PRESAVED, load_pixels, imports=("streaming",), prepare=prepare_pixels),
)
