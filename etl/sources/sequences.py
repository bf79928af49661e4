"""Sequences of varying length: one CSV file for each, or arrays in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etl.sources.csv_layout import CsvLayout, read_layout
from etl.sources.csv_rows import scan_rows
from etl.sources.folder_walk import FolderWalk
from etl.sources.identity import Identified, file_stamp
from etl.sources.labels import Labels
from etl.sources.record import Record, check_index
from etl.sources.sequence_files import LABELS_FILE, ROOT, SUFFIX, find_sequences, label_sequences, label_steps
from presave.files import checksum_bytes
from presave.schema import MASKED, is_masked


class Sequences(Identified):
    """A folder of CSV files, one file for each sequence and one line for each step. `from_arrays` takes arrays instead.

    A record has `features`, an array of `dtype` and shape `(steps, columns)`, and, if there are labels, `label`: a
    scalar, or an array of shape `(steps,)`. Sequences are sorted by name, with numbers in names by value. All files
    must have the columns of the first.

    Labels come from the first of these that exists:

    1. the column `label` of each file, one label for each step;
    2. the file `labels.csv` in the folder, whose first line is `name,label`, also with another separator, one label
       for each sequence (names with or without `.csv`);
    3. the index of the sub-folder with the file, as in `ImageFolder`.

    Parameters
    ----------
    root : str or Path
        The folder.
    label : str or int, optional
        Column with the labels of steps: its name, or its index, which counts from the end if negative.
    header : bool
        True if the first line of each file names the columns, False if it is the first step.
    features : sequence of str or int, optional
        Columns that are features. By default all but the label and row names, as for `Csv`.
    delimiter : str
        One ASCII character.
    classes : sequence of str, optional
        Names of the classes, as for `Csv`. Needed if the labels of steps are names, because inferring them would take a
        pass over all files.
    regression : bool
        If True, labels are targets of `dtype`, not classes.
    dtype : str
        "float32" or "float64".
    missing : float, optional
        Replacement for missing values, as for `Csv`. By default they are errors.
    follow_links : bool
        Follow links that lead out of `root`. By default they are errors.
    allow_empty : bool
        Accept class folders without sequences.

    Raises
    ------
    ValueError
        If there are no sequences, or a file is malformed. The error names file, line and column.

    Warns
    -----
    UserWarning
        If row names or files with another suffix are left out. It counts the files, but not hidden files and files
        beside class folders.

    Notes
    -----
    A file is read on access, and no file is open between reads.

    Examples
    --------
    >>> features = [np.zeros((steps, 2), np.float32) for steps in (3, 5, 4)]
    >>> source = etl.Sequences.from_arrays(features, labels=np.array([0, 1, 0]))
    >>> batch = next(iter(etl.RawIterator(source, padding=etl.loading.Padding())))
    >>> batch.features.shape, batch.features_mask.sum(axis=1)
    ((3, 5, 2), array([3., 5., 4.], dtype=float32))
    """

    thread_safe = True

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
        self._root = Path(root)
        walk = FolderWalk(self._root, (SUFFIX,), follow_links, f"not {SUFFIX} files")
        folders = find_sequences(walk)
        self._files = [file for files in folders.values() for file in files]
        if not self._files:
            raise ValueError(
                f"{root} holds no sequences: expected {SUFFIX} files, in it or in one sub-folder for each class"
            )
        # Keyword arguments of `read_layout`.
        self._columns: dict[str, Any] = {
            "label": label,
            "header": header,
            "features": features,
            "delimiter": delimiter,
            "dtype": dtype,
            "missing": missing,
        }
        self._first_layout = self._layout(0)
        self._first_layout.warn_of_row_names()
        self.options = {**self._first_layout.options, "regression": regression}
        self.classes: list[str] | None = None
        # One label for each sequence, or the meaning of those of the steps, which are in the files.
        self._labels: list[Any] | None = None
        self._step_labels: Labels | None = None
        if label is not None:
            self._step_labels = label_steps(self._first_layout, classes, regression)
            self.classes = self._step_labels.classes
        elif (self._root / LABELS_FILE).is_file():
            self._labels, self.classes = label_sequences(self._root, self._files, classes, regression, dtype)
        elif regression or classes is not None:
            raise ValueError(f"{root} has no {LABELS_FILE}; regression and classes need that file or a label column")
        elif ROOT not in folders:
            if not allow_empty:
                walk.refuse_empty(folders, "sequences")
            self.classes = list(folders)
            self._labels = [number for number, files in enumerate(folders.values()) for _ in files]
        walk.left_out.warn(self.name)
        self._root = self._root.absolute()  # before records are read, the working folder may change
        self._lengths: NDArray[np.int64] | None = None
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
        """Make a source of arrays in memory. An array is copied only if its dtype changes.

        Parameters
        ----------
        features : sequence of arrays of shape (steps, columns)
            One for each sequence. They become float32, unless all of them are float64.
        labels : sequence of scalars, or of arrays of shape (steps,), optional
            One for each sequence. They become int64; or the dtype of the features, if any of them is floating-point.
        classes : sequence of str, optional
            Names of the classes.
        name : str
            Name of the source, for messages.

        Raises
        ------
        ValueError
            If shapes do not match. It names the sequence.
        """
        return _Arrays(features, labels, classes, name)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Record:
        """Read record `index`; raise `ValueError` that names file, line and column."""
        check_index(self, index)
        return self._read(index)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of steps of each sequence: int64 of shape `(records,)`. The first access reads all files."""
        if self._lengths is None:
            self._lengths = np.array([self._count_steps(index) for index in range(len(self))], np.int64)
        return self._lengths

    def describe(self, index: int) -> str:
        """Return the path of record `index` below the root, for messages."""
        return self._files[index]

    def origin(self, index: int) -> str:
        """Return name, size, times and label of the file of record `index`, or a digest of its arrays."""
        label = None if self._labels is None else self._labels[index]
        return f"{self._files[index]}, {file_stamp(self._root / self._files[index])}, label {label}"

    def __repr__(self) -> str:
        return f"Sequences({self.name!r}, {len(self):,} sequences)"

    def _identified(self) -> tuple[Sequence[str], Sequence[str | Path], Any]:
        return self._files, [self._root / file for file in self._files], self._labels

    def _layout(self, index: int) -> CsvLayout:
        """Read the layout of file `index`; raise `ValueError` if its columns differ from those of the first file."""
        layout = read_layout(self._root / self._files[index], **self._columns)
        if index and layout.names != self._first_layout.names:
            raise ValueError(
                f"{layout.path} has columns {', '.join(layout.names)}; {self._first_layout.path} has "
                f"{', '.join(self._first_layout.names)}"
            )
        return layout

    def _read(self, index: int) -> Record:
        layout = self._layout(index)
        steps, labels = [], []
        for rows in scan_rows(layout):
            for number, line in enumerate(rows.lines(), rows.first_line):
                features, text = layout.parse(line, number)
                steps.append(features)
                if self._step_labels is not None:
                    labels.append(layout.parse_label(self._step_labels, text, number))
        if not steps:
            raise ValueError(f"{layout.path} holds no steps")
        record: dict[str, Any] = {"features": np.stack(steps)}
        if self._step_labels is not None:
            record["label"] = np.array(labels)
        elif self._labels is not None:
            record["label"] = self._labels[index]
        return record

    def _count_steps(self, index: int) -> int:
        """Count the steps of sequence `index` without parsing their numbers."""
        return sum(len(rows.starts) for rows in scan_rows(self._layout(index)))


class _Arrays(Sequences):
    """Sequences in memory."""

    def __init__(
        self, features: Sequence[np.ndarray], labels: Sequence[Any] | None, classes: Sequence[str] | None, name: str
    ) -> None:
        given = list(features)
        arrays = [np.asarray(array) for array in given]
        if not arrays:
            raise ValueError("there are no sequences")
        dtype = np.dtype(np.float64 if all(array.dtype == np.float64 for array in arrays) else np.float32)
        for number, array in enumerate(arrays):
            if is_masked(given[number]):
                raise ValueError(f"sequence {number} has {MASKED}")
            if array.ndim != 2 or array.dtype.kind not in "biuf" or not array.size:
                raise ValueError(
                    f"sequence {number} is {array.dtype} of shape {array.shape}, not numbers of shape (steps, columns)"
                )
            if array.shape[1] != arrays[0].shape[1]:
                raise ValueError(f"sequence {number} has {array.shape[1]} columns, the first {arrays[0].shape[1]}")
        self.name = name
        self.classes = None if classes is None else list(classes)
        self.options = {}
        self._features = [array.astype(dtype, copy=False) for array in arrays]
        self._labels = None if labels is None else _as_labels(labels, self._features)
        self._lengths = np.array([len(array) for array in self._features], np.int64)
        has_step_labels = self._labels is not None and self._labels[0].ndim == 1
        self.ragged = ("features", "label") if has_step_labels else ("features",)

    def __len__(self) -> int:
        return len(self._features)

    def _read(self, index: int) -> Record:
        if self._labels is None:
            return {"features": self._features[index]}
        return {"features": self._features[index], "label": self._labels[index][()]}

    def describe(self, index: int) -> str:
        return f"sequence {index}"

    def origin(self, index: int) -> str:
        arrays = self._read(index).values()
        return "".join(checksum_bytes(f"{np.shape(array)}".encode() + np.asarray(array).tobytes()) for array in arrays)

    def _identified(self) -> tuple[list[str], list[Path], list[str]]:
        return [], [], [self.origin(index) for index in range(len(self))]


def _as_labels(labels: Sequence[Any], features: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return one array for each label, all of one dtype, of shape `()` or `(steps,)`."""
    given = list(labels)
    arrays = [np.asarray(label) for label in given]
    if len(arrays) != len(features):
        raise ValueError(f"{len(features)} sequences and {len(arrays)} labels do not belong together")
    for number, (label, sequence) in enumerate(zip(arrays, features, strict=True)):
        if is_masked(given[number]):
            raise ValueError(f"the label of sequence {number} has {MASKED}")
        if label.dtype.kind not in "biuf":
            raise ValueError(
                f"the label of sequence {number} is {label.dtype}; pass numbers, and names as classes=[...]"
            )
        expected = () if arrays[0].ndim == 0 else (len(sequence),)
        if label.shape != expected:
            raise ValueError(f"the label of sequence {number} has shape {label.shape}, expected {expected}")
    is_floating = any(label.dtype.kind == "f" for label in arrays)
    return [label.astype(features[0].dtype if is_floating else np.int64, copy=False) for label in arrays]
