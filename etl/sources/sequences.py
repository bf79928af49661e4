"""Sequences of varying length: a CSV file for each, or arrays in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from etl.sources.record import Record
from etl.sources.sequence_files import (
    LABELS_FILE,
    SUFFIX,
    SequenceFiles,
    find_sequences,
    label_sequences,
    label_steps,
)


class Sequences:
    """The CSV files in a folder, one for each sequence, a line a step; or arrays in memory, see `from_arrays`.

    A record has `features`, of shape `(steps, columns)` and `dtype` (float32, or float64), and, where there are labels,
    `label`: one, or of shape `(steps,)`. Sequences are sorted by name, numbers in names by value. All files have the
    columns of the first. Columns, `header`, `features`, `delimiter`, `missing` and errors are as for `Csv`.

    Labels are, in this order: the column `label` of each file, one for each step; those in a file `labels.csv` in the
    folder, with a first line `name,label`, one for each sequence (names with or without `.csv`); where files lie in
    sub-folders, the number of the sub-folder, as for `ImageFolder`, with `allow_empty` as there. What they mean is as
    for `Csv`, except that texts of a column need `classes=`, because it would take a pass over all files to find the
    names.

    Files with another suffix are counted in a `UserWarning`, hidden ones and those beside class folders are not. Files
    are read when asked for, none is open in between. Links that lead out of the folder are refused, unless
    `follow_links`. Raises `ValueError` that names the file, line and column.
    """

    def __init__(
        self,
        root: str | Path,
        label: str | int | None = None,
        *,
        header: bool = True,
        features: Sequence[str | int] | None = None,
        delimiter: str = ",",
        classes: Sequence[str] | None = None,
        regression: bool = False,
        dtype: str = "float32",
        missing: float | None = None,
        follow_links: bool = False,
        allow_empty: bool = False,
    ) -> None:
        if regression and classes is not None:
            raise ValueError("labels are either targets (regression=True) or names (classes=[...])")
        self.name = str(root)
        folder = Path(root)
        if not folder.is_dir():
            raise ValueError(f"{root} is not a folder" if folder.exists() else f"{root} does not exist")
        found = find_sequences(folder, follow_links)
        if not found.files:
            raise ValueError(f"{root} holds no sequences: expected {SUFFIX} files, in it or in a sub-folder a class")
        options: dict[str, Any] = {
            "label": label,
            "header": header,
            "features": features,
            "delimiter": delimiter,
            "dtype": dtype,
            "missing": missing,
        }
        reader = SequenceFiles(folder, found.files, options)
        self.options = {**reader.first_layout.options, "regression": regression}
        self.classes: list[str] | None = None
        if label is not None:
            reader.step_labels = label_steps(reader, classes, regression, dtype)
            self.classes = reader.step_labels.classes
        elif (folder / LABELS_FILE).is_file():
            reader.labels, self.classes = label_sequences(reader, classes, regression, dtype)
        elif regression or classes is not None:
            raise ValueError(f"{root} has no {LABELS_FILE}; regression and classes are for it or for a label column")
        elif found.folders is not None:
            if not allow_empty:
                found.walk.refuse_empty(found.folders, "sequences")
            self.classes = list(found.folders)
            reader.labels = [number for number, files in enumerate(found.folders.values()) for _ in files]
        found.walk.left_out.warn(self.name)
        self._reader: _Reader = reader
        self._lengths: np.ndarray | None = None
        self.ragged = ("features",) if label is None else ("features", "label")

    @classmethod
    def from_arrays(
        cls,
        features: Sequence[np.ndarray],
        labels: Sequence[Any] | None = None,
        *,
        classes: Sequence[str] | None = None,
        name: str = "arrays",
    ) -> Sequences:
        """Sequences of arrays of shape `(steps, columns)`, with a label for each: a number, or one for each step.

        Features are kept as float32, unless all are float64; labels as int64, or, if any is floating, in the dtype of
        features. Arrays are copied only where that changes them. Raises `ValueError` that names the sequence where
        shapes do not go together.
        """
        source = cls.__new__(cls)
        reader = _Arrays(name, features, labels)
        source.name = name
        source.classes = None if classes is None else list(classes)
        source.options = {}
        source._reader = reader
        source._lengths = None
        source.ragged = ("features", "label") if reader.has_step_labels else ("features",)
        return source

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, index: int) -> Record:
        """Record `index`."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {self.name}, which holds {len(self)}")
        return self._reader.read(index)

    @property
    def lengths(self) -> np.ndarray:
        """The steps of each sequence, int64 of shape `(records,)`. Asked for first, this reads all files once."""
        if self._lengths is None:
            self._lengths = np.array([self._reader.count_steps(index) for index in range(len(self))], np.int64)
        return self._lengths

    def describe(self, index: int) -> str:
        """The path of record `index` below the root, for messages."""
        return self._reader.describe(index)

    def __repr__(self) -> str:
        return f"Sequences({self.name!r}, {len(self):,} sequences)"


class _Reader(Protocol):
    """Reads one sequence at a time, from wherever they are."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Record: ...

    def count_steps(self, index: int) -> int: ...

    def describe(self, index: int) -> str: ...


class _Arrays:
    """Sequences that are in memory."""

    def __init__(self, name: str, features: Sequence[np.ndarray], labels: Sequence[Any] | None) -> None:
        self.name = name
        arrays = [np.asarray(array) for array in features]
        if not arrays:
            raise ValueError("there are no sequences")
        dtype = np.dtype(np.float64 if all(array.dtype == np.float64 for array in arrays) else np.float32)
        for number, array in enumerate(arrays):
            if array.ndim != 2 or array.dtype.kind not in "biuf" or not array.size:
                raise ValueError(
                    f"sequence {number} is {array.dtype} of shape {array.shape}, not numbers of shape (steps, columns)"
                )
            if array.shape[1] != arrays[0].shape[1]:
                raise ValueError(f"sequence {number} has {array.shape[1]} columns, the first {arrays[0].shape[1]}")
        self.features = [array.astype(dtype, copy=False) for array in arrays]
        self.labels = None if labels is None else _as_labels(labels, self.features)
        self.has_step_labels = self.labels is not None and self.labels[0].ndim == 1

    def __len__(self) -> int:
        return len(self.features)

    def read(self, index: int) -> Record:
        if self.labels is None:
            return {"features": self.features[index]}
        return {"features": self.features[index], "label": self.labels[index][()]}

    def count_steps(self, index: int) -> int:
        return len(self.features[index])

    def describe(self, index: int) -> str:
        return f"sequence {index}"


def _as_labels(labels: Sequence[Any], features: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One array for each label, of one dtype, of shape `()` or `(steps,)`."""
    arrays = [np.asarray(label) for label in labels]
    if len(arrays) != len(features):
        raise ValueError(f"{len(features)} sequences and {len(arrays)} labels do not belong together")
    for number, (label, sequence) in enumerate(zip(arrays, features, strict=True)):
        if label.dtype.kind not in "biuf":
            raise ValueError(
                f"the label of sequence {number} is {label.dtype}; pass numbers, and names as classes=[...]"
            )
        expected = () if arrays[0].ndim == 0 else (len(sequence),)
        if label.shape != expected:
            raise ValueError(f"the label of sequence {number} has shape {label.shape}, expected {expected}")
    is_floating = any(label.dtype.kind == "f" for label in arrays)
    return [label.astype(features[0].dtype if is_floating else np.int64, copy=False) for label in arrays]
