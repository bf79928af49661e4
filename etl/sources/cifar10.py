"""CIFAR-10's binary version (https://www.cs.toronto.edu/~kriz/cifar.html)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from etl.sources.identity import FileIdentity, relative_names
from etl.sources.labels import read_class_names
from etl.sources.record import Record, check_file, check_index
from presave.mapped_file import map_file

# A record is its label and three planes, red, green and blue.
PLANES_SHAPE = (3, 32, 32)
RECORD_NBYTES = 1 + 3 * 32 * 32
SPLIT_FILES = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
CLASSES_FILE = "batches.meta.txt"
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


class Cifar10(FileIdentity):
    """Images and labels of CIFAR-10's binary version.

    A record has `features`, uint8 of shape `(32, 32, 3)`, and `label`, an int from 0 to 9. Features are a read-only
    view of the planes in the file, and the stage `channels_first` turns the axes back without a copy.

    Parameters
    ----------
    path : str, Path, or several
        The folder of the data set, or the files to read.
    split : str, optional
        "train" (the default) or "test", if `path` is a folder.

    Attributes
    ----------
    classes : list of str
        Names in the file `batches.meta.txt` beside the data, if there is one; otherwise the published names.

    Raises
    ------
    ValueError
        If a file is missing or has a wrong size, or a label is above 9. The error names the file and the image.

    Notes
    -----
    Files are memory-mapped on the first read, so a pickled `Cifar10` is small and shares no file handle.
    """

    thread_safe = True

    def __init__(self, path: str | Path | Sequence[str | Path], split: str | None = None) -> None:
        self.files = _find_files(path, split)
        self.options = {"files": [file.name for file in self.files]}
        self.name = str(path) if isinstance(path, (str, Path)) else ", ".join(map(str, path))
        self._ends = list(accumulate(_count_records(file) for file in self.files))
        self.files = [file.absolute() for file in self.files]  # before records are read, the working folder may change
        self.classes = _read_classes(self.files[0].parent / CLASSES_FILE)
        self._maps: dict[Path, np.ndarray] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Record:
        file, row = self._locate(index)
        rows = self._maps.get(file)
        if rows is None:
            rows = map_file(file).reshape(-1, RECORD_NBYTES)
            self._maps[file] = rows
        label = int(rows[row, 0])
        if label >= len(CLASSES):
            raise ValueError(f"{file}: image {row} has label {label}, beyond 9; this is not CIFAR-10, or damaged")
        return {"features": rows[row, 1:].reshape(PLANES_SHAPE).transpose(1, 2, 0), "label": label}

    def describe(self, index: int) -> str:
        """Return the file of record `index` and the record's index in that file, for messages."""
        file, row = self._locate(index)
        return f"{file.name}, image {row}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": {}}

    def _identified(self) -> tuple[list[str], list[Path], list[str]]:
        return relative_names(self.files), self.files, self.classes

    def __repr__(self) -> str:
        return f"Cifar10({self.name!r}, {len(self):,} images of {len(self.classes)} classes)"

    def _locate(self, index: int) -> tuple[Path, int]:
        check_index(self, index)
        file = bisect_right(self._ends, index)
        return self.files[file], int(index) - (self._ends[file - 1] if file else 0)


def _find_files(path: str | Path | Sequence[str | Path], split: str | None) -> list[Path]:
    if split is not None and split not in SPLIT_FILES:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLIT_FILES)}")
    if isinstance(path, (str, Path)) and Path(path).is_dir():
        files = [Path(path, name) for name in SPLIT_FILES[split or "train"]]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            is_pickled = Path(path, missing[0]).with_suffix("").is_file()
            advice = "; it holds CIFAR-10's Python version: unpack cifar-10-binary.tar.gz, the binary version, instead"
            raise ValueError(f"{path} has no {', '.join(missing)}{advice if is_pickled else ''}")
        return files
    if split is not None:
        raise ValueError(f"split={split!r} chooses among the files of a folder, and {path} is not a folder")
    files = [Path(file) for file in ([path] if isinstance(path, (str, Path)) else path)]
    if not files:
        raise ValueError("no files were given")
    return files


def _count_records(file: Path) -> int:
    check_file(file)
    nbytes = file.stat().st_size
    if nbytes % RECORD_NBYTES or not nbytes:
        raise ValueError(
            f"{file}: {nbytes:,} bytes, not a multiple of {RECORD_NBYTES:,}; it was cut off, or is not of CIFAR-10's "
            "binary version"
        )
    return nbytes // RECORD_NBYTES


def _read_classes(path: Path) -> list[str]:
    if not path.is_file():
        return CLASSES.copy()
    names = read_class_names(path).split()
    if len(names) != len(CLASSES):
        raise ValueError(f"{path} names {len(names)} classes, not {len(CLASSES)}")
    return names
