"""A folder of images, one sub-folder for each class."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np

from etl.record import Record
from etl.sources.folder_walk import FolderWalk

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
# Whoever reads a file takes memory for as many bytes as it says to have.
LARGEST_FILE_NBYTES = 1 << 30


class ImageFolder:
    """The JPEG, PNG and WebP files below `root/CLASS/`, sorted by path. Classes are the sorted folder names.

    A record has `features`, the file's bytes as uint8 of shape `(bytes,)`, and `label`, the number of its class.
    Files with another suffix and names that begin with a dot are not images and are left out. Links that lead out of
    `root` are refused, unless `follow_links`. Holds names only, no file is open between reads. Raises `ValueError`
    where there is no image, or for such a link or one that leads to a folder a second time.
    """

    ragged = ("features",)

    def __init__(self, root: str | Path, *, follow_links: bool = False) -> None:
        self.name = str(root)
        self.root = Path(root)
        if not self.root.is_dir():
            raise ValueError(f"{root} is not a folder" if self.root.exists() else f"{root} does not exist")
        walk = FolderWalk(self.root, SUFFIXES, follow_links)
        files: list[str] = []
        labels: list[int] = []
        self.classes: list[str] = []
        for folder in [entry.name for entry in walk.entries() if entry.is_dir()]:
            found = sorted(walk.files(folder))
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
        """Record `index`; raises `OSError` where its file has gone, and `ValueError` where it is none."""
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
    photographs of 40 kB. Raises `ValueError` for pipes and the like, and for more than `LARGEST_FILE_NBYTES`.
    """
    # Without waiting for somebody to write to it, should it be a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no plain file")
        left = status.st_size
        if left > LARGEST_FILE_NBYTES:
            raise ValueError(f"the file has {left:,} bytes, and no image has more than {LARGEST_FILE_NBYTES:,}")
        parts = []
        while left > 0 and (part := os.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    return parts[0] if len(parts) == 1 else b"".join(parts)
