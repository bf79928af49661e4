"""Loaders of photographs as users write them, which asv measures beside the strategies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

MEAN, DEVIATION = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
SIZE = 64


class Photographs(Dataset[Any]):
    """JPEG files in a folder for each class."""

    def __init__(self, path: str) -> None:
        self.files = sorted(Path(path).rglob("*.jpg"))
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        with Image.open(self.files[index]) as image:
            pixels = np.asarray(image.convert("RGB").resize((SIZE, SIZE)), np.float32) / 255
        return ((pixels - MEAN) / DEVIATION).transpose(2, 0, 1), self.classes.index(self.files[index].parent.name)


def dataloader(path: str, batch_size: int, workers: int) -> DataLoader[Any]:
    """Load in worker processes; a batch is a list of two tensors."""
    return DataLoader(Photographs(path), batch_size, shuffle=True, num_workers=workers)


class Stored:
    """Reads arrays that `prepare` has written; a batch is a mapping."""

    def __init__(self, folder: str, batch_size: int, seed: int) -> None:
        self.files = [Path(folder) / "image.npy", Path(folder) / "label.npy"]
        self.batch_size = batch_size
        self.rng = np.random.default_rng(seed)

    def prepare(self, path: str) -> None:
        """Decode all photographs."""
        for file, arrays in zip(self.files, zip(*Photographs(path), strict=True), strict=True):
            np.save(file, np.stack(arrays))

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        images, labels = (np.load(file, mmap_mode="r") for file in self.files)
        order = self.rng.permutation(len(images))
        for first in range(0, len(order), self.batch_size):
            rows = order[first : first + self.batch_size]
            yield {"image": torch.from_numpy(images[rows]), "label": torch.from_numpy(labels[rows])}


def generate(task: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Load with the task's own source and pipeline, another order in each epoch; a generator is an epoch."""
    order = np.random.default_rng([task.seed, task.epoch]).permutation(task.records)
    for first in range(0, task.records, task.batch_size):
        records = [task.pipeline(task.source[int(index)]) for index in order[first : first + task.batch_size]]
        yield np.stack([each["features"] for each in records]), np.array([each["label"] for each in records])


def without_the_last(path: str, batch_size: int) -> DataLoader[Any]:
    """Leave out the last batch, as `drop_last` does."""
    return DataLoader(Photographs(path), batch_size, shuffle=True, drop_last=True)


def in_double_precision(path: str, batch_size: int) -> Iterator[Any]:
    """Load float64 features, which the model does not take."""
    for images, labels in dataloader(path, batch_size, 0):
        yield images.double(), labels


def absent(source: Any) -> Any:
    """Fail when the data are opened."""
    raise OSError(f"{len(source)} photographs, but no server to stream them from")


def unprepared(path: str) -> Any:
    """Fail while the data are prepared."""
    raise AssertionError("not reached")


unprepared.prepare = absent  # type: ignore[attr-defined]
NUMBER = 3
