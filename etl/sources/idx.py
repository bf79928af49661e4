"""MNIST's file format, IDX (http://yann.lecun.com/exdb/mnist/): images and labels, plain or gzip."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etl.sources.identity import FileIdentity, relative_names
from etl.sources.record import Record, check_file, check_index
from presave.errors import is_shortage
from presave.mapped_file import map_file

GZIP_MAGIC = b"\x1f\x8b"
# The third byte of an IDX file is its type; all are big-endian.
IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_AXES = 16
MAX_HEADER_NBYTES = 4 + 4 * MAX_AXES
# A gzip file that unpacks to more than this size, and to more than this multiple of its own size, was made to fill
# memory.
# DEFLATE compresses at most 1,032 times; images and labels compress a few times.
MAX_UNPACKED_NBYTES, MAX_COMPRESSION = 256 << 20, 100
MAX_CLASSES = 1_000_000
# File name prefixes of MNIST and its successors.
SPLIT_PREFIXES = {"train": "train", "test": "t10k"}


class Idx(FileIdentity):
    """Images and labels from a pair of IDX files, each plain or gzip.

    A record has `features`, for MNIST uint8 of shape `(28, 28)`, and `label`, an int. Plain files are memory-mapped
    and gzip files are unpacked into memory. A pickled `Idx` is small and shares no file handle: it maps or unpacks the
    files again on its first read.

    Parameters
    ----------
    images : str or Path
        File of images; the first axis counts records.
    labels : str or Path
        File of labels: integers of shape `(records,)`.

    Attributes
    ----------
    classes : list of str
        The numbers from 0 to the largest label, as text.

    Raises
    ------
    ValueError
        If a header or length is wrong, the two files do not belong together, a label is out of range, or a gzip file
        would unpack to far more than images do. The error names the file.
    """

    thread_safe = True

    def __init__(self, images: str | Path, labels: str | Path) -> None:
        self.name = str(images)
        # A copy that opens the files again may have another working folder.
        self.images_path = Path(images).absolute()
        self.labels_path = Path(labels).absolute()
        self._images: np.ndarray | None = read_idx(Path(images))
        self._labels: np.ndarray | None = read_idx(Path(labels))
        if self._labels.ndim != 1 or self._labels.dtype.kind not in "iu":
            raise ValueError(f"{labels} is not a file of labels: {self._labels.dtype} of shape {self._labels.shape}")
        if len(self._images) != len(self._labels):
            raise ValueError(
                f"{images} has {len(self._images)} images and {labels} {len(self._labels)} labels; "
                "they are not of the same set"
            )
        if not self._images.size:
            raise ValueError(f"{images} holds no images")
        if self._labels.min() < 0 or self._labels.max() >= MAX_CLASSES:
            wrong = int(np.flatnonzero((self._labels < 0) | (self._labels >= MAX_CLASSES))[0])
            raise ValueError(
                f"{labels}: record {wrong} has label {self._labels[wrong]}, not one from 0 to {MAX_CLASSES - 1:,}"
            )
        self._length = len(self._images)
        self.classes = [str(label) for label in range(int(self._labels.max()) + 1)]

    @classmethod
    def from_folder(cls, folder: str | Path, split: str = "train") -> Idx:
        """Open the "train" or "test" set by MNIST's file names: `train-images-idx3-ubyte`, `t10k-...`, `.gz` or not."""
        if split not in SPLIT_PREFIXES:
            raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLIT_PREFIXES)}")
        prefix = SPLIT_PREFIXES[split]
        return cls(
            _find(Path(folder), f"{prefix}-images-idx3-ubyte"), _find(Path(folder), f"{prefix}-labels-idx1-ubyte")
        )

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Record:
        check_index(self, index)
        if self._images is None or self._labels is None:
            self._images, self._labels = read_idx(self.images_path), read_idx(self.labels_path)
        return {"features": self._images[index], "label": int(self._labels[index])}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_images": None, "_labels": None}

    def _identified(self) -> tuple[list[str], list[Path], None]:
        paths = [self.images_path, self.labels_path]
        return relative_names(paths), paths, None

    def __repr__(self) -> str:
        return f"Idx({self.name!r}, {len(self):,} images of {len(self.classes)} classes)"


def read_idx(path: Path) -> np.ndarray:
    """Return the array in an IDX file, read-only: a memory map of a plain file, a copy of a gzip file.

    Raises `ValueError` that names the file if it is not an IDX file, or longer or shorter than its header says.
    """
    check_file(path)
    with path.open("rb") as file:
        compressed = file.read(2) == GZIP_MAGIC
    if compressed:
        try:
            content = np.frombuffer(_unpack(path), dtype=np.uint8)
        except (OSError, EOFError, zlib.error) as error:
            if is_shortage(error):
                raise
            raise ValueError(f"{path}: damaged gzip file ({error})") from error
    else:
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is empty")
        content = map_file(path)
    return _parse(path, content)


def _unpack(path: Path) -> bytes:
    """Unpack at most one byte more than the file's IDX header announces; raise `ValueError` for a gzip bomb."""
    with gzip.open(path) as file:
        start = file.read(MAX_HEADER_NBYTES)
        _, _, expected = _read_header(path, np.frombuffer(start, np.uint8))
        packed = path.stat().st_size
        if expected > max(MAX_UNPACKED_NBYTES, packed * MAX_COMPRESSION):
            raise ValueError(
                f"{path}: its {packed:,} bytes claim to unpack to {expected:,}; gunzip it yourself if you trust it"
            )
        return start + file.read(max(0, expected + 1 - len(start)))


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write `array` (uint8) as an IDX file, gzip if `path` ends in `.gz`; equal arrays give equal bytes."""
    header = bytes([0, 0, 0x08, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _parse(path: Path, content: NDArray[np.uint8]) -> np.ndarray:
    dtype, shape, expected = _read_header(path, content)
    if len(content) != expected:
        raise ValueError(
            f"{path}: {len(content):,} bytes, but its header says {expected:,} (shape {shape}); "
            "the file was cut off or is not what its header says"
        )
    try:
        return content[expected - math.prod(shape) * dtype.itemsize :].view(dtype).reshape(shape)
    except ValueError as error:  # if one size is 0, the others may be larger than numpy allows
        raise ValueError(f"{path}: no array is of shape {shape} ({error})") from None


def _read_header(path: Path, content: NDArray[np.uint8]) -> tuple[np.dtype, tuple[int, ...], int]:
    """Return the dtype and shape of the array, and the size of the whole file in bytes."""
    magic = content[:4].tobytes()
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in IDX_DTYPES or not 0 < magic[3] <= MAX_AXES:
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
