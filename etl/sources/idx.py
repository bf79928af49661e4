"""MNIST's file format, IDX (http://yann.lecun.com/exdb/mnist/): images and labels, plain or gzip."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from etl.sources.record import Record

GZIP_MAGIC = b"\x1f\x8b"
# The third byte of an IDX file is its type; all are big-endian.
IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MOST_AXES = 16
LONGEST_HEADER_NBYTES = 4 + 4 * MOST_AXES
# A gzip file that unpacks to so much, and to so many times its size, was made to fill memory: DEFLATE reaches 1,032
# times, images and their labels a few.
LARGEST_UNPACKED_NBYTES, MOST_COMPRESSION = 256 << 20, 100
MOST_CLASSES = 1_000_000
# The names under which MNIST and its successors publish their files.
SPLIT_PREFIXES = {"train": "train", "test": "t10k"}


class Idx:
    """Images and labels from a pair of IDX files, each plain or gzip.

    A record has `features`, uint8 of shape `(height, width)` for MNIST, and `label`. Plain files are memory-mapped,
    gzip files unpacked into memory, both when first read, so that a pickled `Idx` is small and shares no handle. Raises
    `ValueError` that names the file where its header or length is wrong, or the two do not belong together, and for a
    gzip file that unpacks to far more than images do.
    """

    def __init__(self, images: str | Path, labels: str | Path) -> None:
        self.name = str(images)
        self.images_path = Path(images)
        self.labels_path = Path(labels)
        self._images: np.ndarray | None = read_idx(self.images_path)
        self._labels: np.ndarray | None = read_idx(self.labels_path)
        if self._labels.ndim != 1 or self._labels.dtype.kind not in "iu":
            raise ValueError(f"{labels} is not a file of labels: {self._labels.dtype} of shape {self._labels.shape}")
        if len(self._images) != len(self._labels):
            raise ValueError(
                f"{images} has {len(self._images)} images and {labels} {len(self._labels)} labels; "
                "they are not of the same set"
            )
        if not self._images.size:
            raise ValueError(f"{images} holds no images")
        if self._labels.min() < 0 or self._labels.max() >= MOST_CLASSES:
            wrong = int(np.flatnonzero((self._labels < 0) | (self._labels >= MOST_CLASSES))[0])
            raise ValueError(
                f"{labels}: record {wrong} has label {self._labels[wrong]}, not one from 0 to {MOST_CLASSES - 1:,}"
            )
        self._length = len(self._images)
        self.classes = [str(label) for label in range(int(self._labels.max()) + 1)]

    @classmethod
    def from_folder(cls, folder: str | Path, split: str = "train") -> Idx:
        """The `train` or `test` set among MNIST's file names (`train-images-idx3-ubyte`, `t10k-...`; `.gz` or not)."""
        if split not in SPLIT_PREFIXES:
            raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLIT_PREFIXES)}")
        prefix = SPLIT_PREFIXES[split]
        return cls(
            _find(Path(folder), f"{prefix}-images-idx3-ubyte"), _find(Path(folder), f"{prefix}-labels-idx1-ubyte")
        )

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Record:
        if self._images is None or self._labels is None:
            self._images, self._labels = read_idx(self.images_path), read_idx(self.labels_path)
        return {"features": self._images[index], "label": int(self._labels[index])}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_images": None, "_labels": None}

    def __repr__(self) -> str:
        return f"Idx({self.name!r}, {len(self):,} images of {len(self.classes)} classes)"


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file, read-only: a memory map of a plain file, a copy of a gzip file.

    Raises `ValueError` that names the file where it is no IDX file, or longer or shorter than its header says.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    with path.open("rb") as file:
        compressed = file.read(2) == GZIP_MAGIC
    if compressed:
        try:
            content = np.frombuffer(_unpack(path), dtype=np.uint8)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: damaged gzip file ({error})") from error
    else:
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty")
        # A plain view of the map, so that records are plain arrays, as those of a gzip file.
        content = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    return _parse(path, content)


def _unpack(path: Path) -> bytes:
    """No more of a gzip file than the array that its header tells of, and one byte; raises `ValueError` for a bomb."""
    with gzip.open(path) as file:
        start = file.read(LONGEST_HEADER_NBYTES)
        _, _, expected = _read_header(path, np.frombuffer(start, np.uint8))
        packed = path.stat().st_size
        if expected > max(LARGEST_UNPACKED_NBYTES, packed * MOST_COMPRESSION):
            raise ValueError(
                f"{path}: its {packed:,} bytes are said to unpack to {expected:,}; gunzip it yourself if you trust it"
            )
        return start + file.read(max(0, expected + 1 - len(start)))


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write `array` (uint8) as an IDX file, gzip where `path` ends in `.gz`; equal arrays give equal bytes."""
    header = bytes([0, 0, 0x08, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _parse(path: Path, content: np.ndarray) -> np.ndarray:
    dtype, shape, expected = _read_header(path, content)
    if len(content) != expected:
        raise ValueError(
            f"{path}: {len(content):,} bytes, but its header says {expected:,} (shape {shape}); "
            "the file was cut off or is not what its header says"
        )
    try:
        return content[expected - math.prod(shape) * dtype.itemsize :].view(dtype).reshape(shape)
    except ValueError as error:  # where one size is 0 the others may be any, but not for numpy
        raise ValueError(f"{path}: no array is of shape {shape} ({error})") from None


def _read_header(path: Path, content: np.ndarray) -> tuple[np.dtype, tuple[int, ...], int]:
    """The dtype and shape of the array, and the bytes of the whole file."""
    magic = content[:4].tobytes()
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in IDX_DTYPES or not 0 < magic[3] <= MOST_AXES:
        raise ValueError(f"{path} is not an IDX file: it begins with {magic.hex(' ') or 'nothing'}")
    dtype = np.dtype(IDX_DTYPES[magic[2]])
    header_nbytes = 4 + 4 * magic[3]
    shape = tuple(int(size) for size in content[4:header_nbytes].view(">u4")) if len(content) >= header_nbytes else ()
    if len(shape) != magic[3]:
        raise ValueError(f"{path}: {len(content):,} bytes, and its header alone says {header_nbytes:,}; it was cut off")
    return dtype, shape, header_nbytes + math.prod(shape) * dtype.itemsize


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise ValueError(f"{folder} has neither {name} nor {name}.gz")
