"""A folder of images, one sub-folder for each class."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from etl.record import Record

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


class ImageFolder:
    """The JPEG, PNG and WebP files below `root/CLASS/`, sorted by path. Classes are the sorted folder names.

    A record has `features`, the file's bytes as uint8 of shape `(bytes,)`, and `label`, the number of its class.
    Files with another suffix and names that begin with a dot are not images and are left out. Holds names only, no
    file is open between reads. Raises `ValueError` where there is no image.
    """

    ragged = ("features",)

    def __init__(self, root: str | Path) -> None:
        self.name = str(root)
        self.root = Path(root)
        if not self.root.is_dir():
            raise ValueError(f"{root} is not a folder" if self.root.exists() else f"{root} does not exist")
        folders = sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir() and not _hidden(entry.name))
        files: list[str] = []
        labels: list[int] = []
        self.classes: list[str] = []
        for folder in folders:
            found = sorted(_images(self.root, folder))
            if found:
                labels.extend([len(self.classes)] * len(found))
                self.classes.append(folder)
                files.extend(found)
        if not files:
            raise ValueError(
                f"{root} holds no images: expected {', '.join(SUFFIXES)} files in one sub-folder for each class"
            )
        self.files = files
        self.labels = np.array(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Record:
        """Record `index`; raises `OSError` where its file has gone."""
        encoded = read_bytes(f"{self.root}/{self.files[index]}")
        if not encoded:
            raise ValueError("the file is empty")
        return {"features": np.frombuffer(encoded, dtype=np.uint8), "label": int(self.labels[index])}

    def describe(self, index: int) -> str:
        """The path of record `index` below the root, for messages."""
        return self.files[index]

    def __repr__(self) -> str:
        return f"ImageFolder({self.name!r}, {len(self):,} images of {len(self.classes)} classes)"


def read_bytes(path: str) -> bytes:
    """All bytes of a file: four system calls. `np.fromfile` and `open` make more, and took three times as long for
    photographs of 40 kB.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        left = os.fstat(descriptor).st_size
        parts = []
        while left > 0 and (part := os.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _images(root: Path, folder: str) -> Iterator[str]:
    """Paths below `root`, with forward slashes, of all images in `folder` and its sub-folders."""
    for entry in os.scandir(root / folder):
        if _hidden(entry.name):
            continue
        path = f"{folder}/{entry.name}"
        if entry.is_dir():
            yield from _images(root, path)
        elif entry.name.lower().endswith(SUFFIXES):
            yield path


def _hidden(name: str) -> bool:
    return name.startswith(".")
