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
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from benchmarks.peers.loader import SIZE, SharedBatches, decode, list_photographs, normalise

SETTINGS = {"workers": (1, 2, 3), "prefetch_factor": (1, 2, 4), "in_order": (True, False)}


def load_with_pillow(path: str, batch_size: int, workers: int, prefetch_factor: int = 2, in_order: bool = True) -> Any:
    class Photographs(Dataset):
        def __init__(self) -> None:
            self.files, labels = list_photographs(path)
            self.labels = torch.from_numpy(labels)
            self.batches = SharedBatches(workers, batch_size, prefetch_factor)

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, indices: list[int]) -> Any:
            batch = self.batches.take(len(indices))
            for image, index in zip(batch.numpy(), indices, strict=True):
                with Image.open(self.files[index]) as photograph:
                    pixels = photograph.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
                normalise(np.asarray(pixels), image)
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


def load_with_simplejpeg(
    path: str, batch_size: int, workers: int, prefetch_factor: int = 2, in_order: bool = True
) -> Any:
    class Photographs(Dataset):
        def __init__(self) -> None:
            self.files, labels = list_photographs(path)
            self.labels = torch.from_numpy(labels)
            self.batches = SharedBatches(workers, batch_size, prefetch_factor)

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, indices: list[int]) -> Any:
            batch = self.batches.take(len(indices))
            pixels = np.empty((SIZE, SIZE, 3), np.uint8)
            for image, index in zip(batch.numpy(), indices, strict=True):
                cv2.resize(simplejpeg.decode_jpeg(self.files[index].read_bytes()), (SIZE, SIZE), dst=pixels)
                normalise(pixels, image)
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


def prepare_memmap(path: str, folder: str) -> None:
    files, labels = list_photographs(path)
    images = np.lib.format.open_memmap(f"{folder}/images.npy", "w+", np.uint8, (len(files), SIZE, SIZE, 3))
    for number, file in enumerate(files):
        images[number] = decode(file)
    np.save(f"{folder}/labels.npy", labels)


def load_memmap(folder: str, batch_size: int, workers: int, prefetch_factor: int = 2, in_order: bool = True) -> Any:
    class Photographs(Dataset):
        def __init__(self) -> None:
            self.images = np.load(f"{folder}/images.npy", mmap_mode="r")
            self.labels = torch.from_numpy(np.load(f"{folder}/labels.npy"))
            self.batches = SharedBatches(workers, batch_size, prefetch_factor)

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, indices: list[int]) -> Any:
            batch = self.batches.take(len(indices))
            for image, index in zip(batch.numpy(), indices, strict=True):
                normalise(self.images[index], image)
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


load_memmap.prepare = prepare_memmap
load_with_pillow.settings = load_with_simplejpeg.settings = load_memmap.settings = SETTINGS
