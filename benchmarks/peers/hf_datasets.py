"""Hugging Face datasets: huggingface.co/docs/datasets, "Use with PyTorch"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.imagenet import PIXEL_MEAN, PIXEL_SCALE, SIZE
from benchmarks.peers.loader import PRESAVED, RAW, Loader


def prepare_jpeg(source: str, folder: str) -> None:
    from datasets import Dataset

    def read() -> Any:
        for number, file in enumerate(sorted(Path(source).glob("*/*.jpg"))):
            yield {"jpeg": file.read_bytes(), "number": number}

    Dataset.from_generator(read, cache_dir=f"{folder}/cache").save_to_disk(f"{folder}/photographs")


def load_jpeg(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import simplejpeg
    from datasets import load_from_disk
    from torch.utils.data import DataLoader

    def load(records: Any) -> Any:
        images = []
        for jpeg in records["jpeg"]:
            pixels = cv2.resize(simplejpeg.decode_jpeg(jpeg), (SIZE, SIZE))
            images.append(np.subtract(pixels.transpose(2, 0, 1), PIXEL_MEAN, order="C"))
            images[-1] *= PIXEL_SCALE
        return {"pair": list(zip(images, records["number"], strict=True))}

    dataset = load_from_disk(f"{folder}/photographs").with_transform(load)
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=threads, persistent_workers=True)
    return Pairs(loader)


class Pairs:
    """Batches without the name of the column."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Any:
        return (batch["pair"] for batch in self._loader)


def prepare_pixels(source: str, folder: str) -> None:
    from datasets import Array3D, Dataset, Features, Value

    def read() -> Any:
        for number, pixels in enumerate(np.load(source, mmap_mode="r")):
            yield {"pixels": pixels, "number": number}

    features = Features({"pixels": Array3D((SIZE, SIZE, 3), "uint8"), "number": Value("int64")})
    dataset = Dataset.from_generator(read, features=features, cache_dir=f"{folder}/cache")
    dataset.save_to_disk(f"{folder}/photographs")


def load_pixels(folder: str, batch_size: int, threads: int) -> Any:
    import torch
    from datasets import load_from_disk
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    def collate(records: Any) -> Any:
        batch = np.empty((len(records["number"]), 3, SIZE, SIZE), np.float32)
        for image, pixels in zip(batch, records["pixels"], strict=True):
            np.subtract(pixels.transpose(2, 0, 1), PIXEL_MEAN, out=image)
            image *= PIXEL_SCALE
        return torch.from_numpy(batch), records["number"]

    dataset = load_from_disk(f"{folder}/photographs").with_format("numpy")
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
    Loader("HF datasets", PRESAVED, load_pixels, imports=("datasets", "torch"), prepare=prepare_pixels),
)
