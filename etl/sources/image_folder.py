"""A folder of images, one sub-folder for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from etl.images.pillow import suffixes
from etl.sources.folder_walk import FolderWalk
from etl.sources.identity import Identified, file_stamp
from etl.sources.record import Record, check_index
from presave.files import read_regular_file

# A read allocates as many bytes as the file claims to have.
MAX_FILE_NBYTES = 1 << 30


class ImageFolder(Identified):
    """The images below `root/CLASS/`, sorted by path. Classes are the sorted folder names.

    A record has `features`, the file's bytes as uint8 of shape `(bytes,)`, and `label`, the index of its class. The
    source holds file names only, and no file is open between reads.

    A file is an image if its suffix, in upper or lower case, belongs to a format that the stage `decode` reads: JPEG,
    PNG, WebP, GIF, BMP, TIFF or PPM. If a file has several frames or pages, the first is decoded.

    Parameters
    ----------
    root : str or Path
        The folder of class folders.
    follow_links : bool
        Follow links that lead out of `root`. By default they are errors.
    allow_empty : bool
        Accept class folders without images. They are in `classes` and have an index, as in torchvision.

    Raises
    ------
    ValueError
        If there is no image, a class folder has none, or a link leads out of `root` or to a folder that was listed
        already.

    Warns
    -----
    UserWarning
        If files in class folders are not images, or images are outside of class folders. It counts them by suffix, but
        not hidden files, `Thumbs.db`, `desktop.ini`, and other files beside the class folders, such as a README.

    Examples
    --------
    >>> source = etl.ImageFolder("photos")
    >>> source
    ImageFolder('photos', 40 images of 10 classes)
    >>> source[0]["features"].dtype, source.classes[source[0]["label"]]  # the bytes of a file
    (dtype('uint8'), 'astronaut')
    """

    thread_safe = True

    ragged = ("features",)

    def __init__(self, root: str | Path, *, follow_links: bool = False, allow_empty: bool = False) -> None:
        self.name = str(root)
        self.root = Path(root).absolute()  # before records are read, the working folder may change
        walk = FolderWalk(Path(root), suffixes(), follow_links, "not images")
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
        """Read record `index`; raise `OSError` if its file is gone, and `ValueError` if it is empty or not regular."""
        check_index(self, index)
        encoded = read_regular_file(f"{self.root}/{self.files[index]}", MAX_FILE_NBYTES)
        if not encoded:
            raise ValueError("the file is empty")
        return {"features": np.frombuffer(encoded, dtype=np.uint8), "label": int(self.labels[index])}

    def describe(self, index: int) -> str:
        """Return the path of record `index` below the root, for messages."""
        return self.files[index]

    def origin(self, index: int) -> str:
        """Return name, size, times and label of the file of record `index`."""
        return f"{self.files[index]}, {file_stamp(f'{self.root}/{self.files[index]}')}, label {self.labels[index]}"

    def _identified(self) -> tuple[list[str], list[str], np.ndarray]:
        return self.files, [f"{self.root}/{file}" for file in self.files], self.labels

    def __repr__(self) -> str:
        return f"ImageFolder({self.name!r}, {len(self):,} images of {len(self.classes)} classes)"
