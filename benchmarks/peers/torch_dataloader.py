"""torch's DataLoader: docs.pytorch.org/docs/stable/data.html."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.imagenet import PIXEL_MEAN, PIXEL_SCALE, SIZE
from benchmarks.peers.loader import PRESAVED, RAW, Loader


def load_with_pillow(folder: str, batch_size: int, threads: int) -> Any:
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    class Photographs(Dataset):
        def __init__(self) -> None:
            self.files = sorted(Path(folder).glob("*/*.jpg"))

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> Any:
            with Image.open(self.files[index]) as image:
                pixels = np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))
            image = np.subtract(pixels.transpose(2, 0, 1), PIXEL_MEAN, order="C")
            image *= PIXEL_SCALE
            return image, index

    return DataLoader(Photographs(), batch_size, shuffle=True, num_workers=threads, persistent_workers=True)


def load_with_simplejpeg(folder: str, batch_size: int, threads: int) -> Any:
    import cv2
    import simplejpeg
    from torch.utils.data import DataLoader, Dataset

    class Photographs(Dataset):
        def __init__(self) -> None:
            self.files = sorted(Path(folder).glob("*/*.jpg"))

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> Any:
            pixels = cv2.resize(simplejpeg.decode_jpeg(self.files[index].read_bytes()), (SIZE, SIZE))
            image = np.subtract(pixels.transpose(2, 0, 1), PIXEL_MEAN, order="C")
            image *= PIXEL_SCALE
            return image, index

    return DataLoader(Photographs(), batch_size, shuffle=True, num_workers=threads, persistent_workers=True)


def prepare_memmap(source: str, folder: str) -> None:
    shutil.copy2(source, Path(folder) / "images.npy")


def load_memmap(folder: str, batch_size: int, threads: int) -> Any:
    import torch
    from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

    class Photographs(Dataset):
        def __init__(self) -> None:
            self.images = np.load(f"{folder}/images.npy", mmap_mode="r")

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, indices: list[int]) -> Any:
            batch = np.empty((len(indices), 3, SIZE, SIZE), np.float32)
            for image, index in zip(batch, indices, strict=True):
                np.subtract(self.images[index].transpose(2, 0, 1), PIXEL_MEAN, out=image)
                image *= PIXEL_SCALE
            return torch.from_numpy(batch), indices

    dataset = Photographs()
    batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
    return DataLoader(dataset, batch_size=None, sampler=batches, num_workers=threads, persistent_workers=True)


LOADERS = (
    Loader(
        "DataLoader, Pillow",
        RAW,
        load_with_pillow,
        imports=("PIL.Image", "torch.utils.data"),
        note="resized with antialiasing",
    ),
    Loader("DataLoader, simplejpeg", RAW, load_with_simplejpeg, imports=("cv2", "simplejpeg", "torch.utils.data")),
    Loader("DataLoader, memmap", PRESAVED, load_memmap, imports=("torch.utils.data",), prepare=prepare_memmap),
)
