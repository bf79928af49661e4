"""torch's DataLoader: docs.pytorch.org/docs/stable/data.html, "Disable automatic batching": a sampler of batches, and a
data set that reads a whole batch into memory that the training process shares (`SharedBatches`).

docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html advises workers, whose number depends on the work and the
CPUs; the page of the DataLoader has `persistent_workers`, which keeps them from one epoch to the next,
`prefetch_factor` and `in_order=False`, which does not wait for a slow worker. Without a GPU there is no use for
`pin_memory`.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from benchmarks.peers.loader import (
    MEAN,
    SIZE,
    STD,
    Fill,
    SharedBatches,
    decode,
    fill_from_jpegs,
    fill_from_pixels,
    fill_with_crops,
    import_torchvision,
    list_photographs,
    open_images,
    open_memmap,
    write_memmap,
)

SETTINGS = {"workers": (1, 2, 3), "prefetch_factor": (1, 2, 4), "in_order": (True, False)}


def load_with_pillow(path: str, batch_size: int, workers: int, prefetch_factor: int = 2, in_order: bool = True) -> Any:
    return _make_loader(*open_images(path, fill_from_pixels, decode), batch_size, workers, prefetch_factor, in_order)


def load_with_simplejpeg(
    path: str, batch_size: int, workers: int, prefetch_factor: int = 2, in_order: bool = True
) -> Any:
    return _make_loader(*open_images(path, fill_from_jpegs), batch_size, workers, prefetch_factor, in_order)


def load_crops(path: str, batch_size: int, workers: int, prefetch_factor: int = 2, in_order: bool = True) -> Any:
    return _make_loader(*open_images(path, fill_with_crops), batch_size, workers, prefetch_factor, in_order)


def load_with_torchvision(
    path: str, batch_size: int, workers: int, prefetch_factor: int = 2, in_order: bool = True
) -> Any:
    import_torchvision()
    from torchvision.transforms.v2 import (
        Compose,
        Normalize,
        PILToTensor,
        RandomHorizontalFlip,
        RandomResizedCrop,
        ToDtype,
    )

    files, labels = list_photographs(path)
    transform = Compose(
        [
            PILToTensor(),
            RandomResizedCrop(SIZE, antialias=True),
            RandomHorizontalFlip(),
            ToDtype(torch.float32, scale=True),
            Normalize(MEAN, STD),
        ]
    )

    def fill(batch: np.ndarray, indices: list[int]) -> None:
        for image, index in zip(torch.from_numpy(batch), indices, strict=True):
            with Image.open(files[index]) as photograph:
                image.copy_(transform(photograph.convert("RGB")))

    return _make_loader(labels, fill, batch_size, workers, prefetch_factor, in_order)


def load_memmap(folder: str, batch_size: int, workers: int, prefetch_factor: int = 2, in_order: bool = True) -> Any:
    return _make_loader(*open_memmap(folder), batch_size, workers, prefetch_factor, in_order)


def _make_loader(
    labels: np.ndarray, fill: Fill, batch_size: int, workers: int, prefetch_factor: int, in_order: bool
) -> Any:
    """Return a DataLoader of the batches into which `fill` writes the images with these indices."""

    class Photographs(Dataset):
        def __init__(self) -> None:
            self.labels = torch.from_numpy(labels)
            self.batches = SharedBatches(workers, batch_size, prefetch_factor)

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, indices: list[int]) -> Any:
            batch = self.batches.take(len(indices))
            fill(batch.numpy(), indices)
            return batch, self.labels[indices]

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    dataset = Photographs()
    batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=batches,
        num_workers=workers,
        prefetch_factor=prefetch_factor,
        in_order=in_order,
        persistent_workers=True,
    )


load_memmap.prepare = write_memmap
load_with_pillow.settings = load_with_simplejpeg.settings = load_crops.settings = load_with_torchvision.settings = (
    load_memmap.settings
) = SETTINGS
