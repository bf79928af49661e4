"""torch's DataLoader: docs.pytorch.org/docs/stable/data.html, "Disable automatic batching": a sampler of batches, and a
data set that reads a whole batch into memory that the training process shares (`SharedBatches`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.loader import PRESAVED, RAW, SIZE, Loader, SharedBatches, normalise

# Batches that a worker loads ahead; torch's default.
PREFETCH_FACTOR = 2


def load_with_pillow(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import torch
    from PIL import Image
    from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

    class Photographs(Dataset):
        def __init__(self) -> None:
            self.files = sorted(Path(folder).glob("*/*.jpg"))
            self.batches = SharedBatches(threads, batch_size, PREFETCH_FACTOR)

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, indices: list[int]) -> Any:
            batch = self.batches.take(len(indices))
            for image, index in zip(batch.numpy(), indices, strict=True):
                with Image.open(self.files[index]) as photograph:
                    pixels = photograph.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
                normalise(np.asarray(pixels), image)
            return batch, torch.tensor(indices)

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    dataset = Photographs()
    batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
    return DataLoader(dataset, batch_size=None, sampler=batches, num_workers=threads, persistent_workers=True)


def load_with_simplejpeg(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import simplejpeg
    import torch
    from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

    class Photographs(Dataset):
        def __init__(self) -> None:
            self.files = sorted(Path(folder).glob("*/*.jpg"))
            self.batches = SharedBatches(threads, batch_size, PREFETCH_FACTOR)

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, indices: list[int]) -> Any:
            batch = self.batches.take(len(indices))
            pixels = np.empty((SIZE, SIZE, 3), np.uint8)
            for image, index in zip(batch.numpy(), indices, strict=True):
                cv2.resize(simplejpeg.decode_jpeg(self.files[index].read_bytes()), (SIZE, SIZE), dst=pixels)
                normalise(pixels, image)
            return batch, torch.tensor(indices)

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    dataset = Photographs()
    batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
    return DataLoader(dataset, batch_size=None, sampler=batches, num_workers=threads, persistent_workers=True)


def prepare_memmap(source: str, folder: str) -> None:
    shutil.copy2(source, Path(folder) / "images.npy")


def load_memmap(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import torch
    from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

    class Photographs(Dataset):
        def __init__(self) -> None:
            self.images = np.load(f"{folder}/images.npy", mmap_mode="r")
            self.batches = SharedBatches(threads, batch_size, PREFETCH_FACTOR)

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, indices: list[int]) -> Any:
            batch = self.batches.take(len(indices))
            for image, index in zip(batch.numpy(), indices, strict=True):
                normalise(self.images[index], image)
            return batch, torch.tensor(indices)

    cv2.setNumThreads(1)  # inherited by the workers, which are the parallel ones
    dataset = Photographs()
    batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
    return DataLoader(dataset, batch_size=None, sampler=batches, num_workers=threads, persistent_workers=True)


LOADERS = (
    Loader(
        "DataLoader, Pillow",
        RAW,
        load_with_pillow,
        imports=("PIL.Image", "cv2", "torch.utils.data"),
        note="resized with antialiasing",
    ),
    Loader("DataLoader, simplejpeg", RAW, load_with_simplejpeg, imports=("cv2", "simplejpeg", "torch.utils.data")),
    Loader("DataLoader, memmap", PRESAVED, load_memmap, imports=("cv2", "torch.utils.data"), prepare=prepare_memmap),
)
