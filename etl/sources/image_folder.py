"""A folder of images, one sub-folder for each class."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np

from etl.images.pillow import suffixes
from etl.sources.folder_walk import FolderWalk
from etl.sources.record import Record

# Whoever reads a file takes memory for as many bytes as it says to have.
LARGEST_FILE_NBYTES = 1 << 30


class ImageFolder:
    """The images below `root/CLASS/`, sorted by path. Classes are the sorted folder names.

    A record has `features`, the file's bytes as uint8 of shape `(bytes,)`, and `label`, the number of its class.
    Holds names only, no file is open between reads.

    Files are images if their suffix, in any case, is one of a format that the stage `decode` reads: JPEG, PNG, WebP,
    GIF, BMP, TIFF or PPM. Of several frames or pages the first is decoded. A `UserWarning` counts, by suffix, the other
    files of class folders, and the images outside of them. It does not count hidden files, `Thumbs.db` and
    `desktop.ini`, nor what lies beside the class folders and is no image, such as a README.

    Parameters
    ----------
    root : str or Path
        The folder of class folders.
    follow_links : bool
        Read what links lead to that lead out of `root`, which are refused otherwise.
    allow_empty : bool
        Accept class folders without images. They are in `classes` and have a number, as in torchvision.

    Raises
    ------
    ValueError
        If there is no image, a class folder has none, or for a link out of `root` or to a folder met before.
    """

    ragged = ("features",)

    def __init__(self, root: str | Path, *, follow_links: bool = False, allow_empty: bool = False) -> None:
        self.name = str(root)
        self.root = Path(root)
        if not self.root.is_dir():
            raise ValueError(f"{root} is not a folder" if self.root.exists() else f"{root} does not exist")
        walk = FolderWalk(self.root, suffixes(), follow_links, "not images")
        found: dict[str, list[str]] = {}
        for entry in walk.entries():
            if entry.is_dir():
                found[entry.name] = sorted(walk.files(entry.name))
            elif entry.name.lower().endswith(suffixes()):
                walk.left_out.add(entry.name, "outside of the class folders")
        self.classes = list(found)
        self.files = [file for files in found.values() for file in files]
        if not self.files:
            left_out = f"; left out: {walk.left_out}" if walk.left_out else ""
            raise ValueError(
                f"{root} holds no images: expected {', '.join(suffixes())} files in one sub-folder for each class"
                f"{left_out}"
            )
        if not allow_empty:
            walk.refuse_empty(found, "images")
        self.labels = np.repeat(np.arange(len(found)), [len(files) for files in found.values()])
        walk.left_out.warn(self.name)

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
