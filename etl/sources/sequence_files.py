"""A folder with one CSV file for each sequence: its files, their labels, and reading one of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etl.sources.csv_layout import CsvLayout, read_layout
from etl.sources.csv_rows import scan_rows
from etl.sources.folder_walk import FolderWalk
from etl.sources.identity import file_stamp
from etl.sources.labels import ClassNames, LabelError, LabelFinder, Labels, Targets
from etl.sources.record import Record

SUFFIX = ".csv"
LABELS_FILE = "labels.csv"


class SequenceFiles:
    """Reads the sequences in CSV files.

    Parameters
    ----------
    files : list of str
        Paths below `root`, one for each sequence.
    options : dict
        Keyword arguments of `read_layout`.

    Attributes
    ----------
    labels : list or None
        One label for each sequence; None unless the caller sets it.
    step_labels : Labels or None
        Meaning of the labels in the files, one for each step; None unless the caller sets it.
    """

    def __init__(self, root: Path, files: list[str], options: dict[str, Any]) -> None:
        self.root = root
        self.files = files
        self.options = options
        self.first_layout = self.layout(0)
        self.labels: list[Any] | None = None
        self.step_labels: Labels | None = None

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> Record:
        """Read record `index`; raise `ValueError` that names file, line and column."""
        layout = self.layout(index)
        steps, labels = [], []
        for rows in scan_rows(layout):
            for number, line in enumerate(rows.lines(), rows.first_line):
                features, text = layout.parse(line, number)
                steps.append(features)
                if self.step_labels is not None:
                    try:
                        labels.append(self.step_labels.value(text))
                    except ValueError as error:
                        raise layout.error(number, layout.label or 0, str(error)) from None
        if not steps:
            raise ValueError(f"{layout.path} holds no steps")
        record: dict[str, Any] = {"features": np.stack(steps)}
        if self.step_labels is not None:
            record["label"] = np.array(labels)
        elif self.labels is not None:
            record["label"] = self.labels[index]
        return record

    def count_steps(self, index: int) -> int:
        """Count the steps of sequence `index` without parsing their numbers."""
        return sum(len(rows.starts) for rows in scan_rows(self.layout(index)))

    def describe(self, index: int) -> str:
        """Return the path of file `index` below the root."""
        return self.files[index]

    def origin(self, index: int) -> str:
        """Return name, size, times, inode and label of file `index`."""
        label = None if self.labels is None else self.labels[index]
        return f"{self.files[index]}, {file_stamp(self.root / self.files[index])}, label {label}"

    def identified(self) -> tuple[list[str], list[Path], list[Any] | None]:
        """Return the names and paths of the files, and the labels that are in none of them."""
        return self.files, [self.root / file for file in self.files], self.labels

    def layout(self, index: int) -> CsvLayout:
        """Read the layout of file `index`; raise `ValueError` if its columns differ from those of the first file."""
        layout = read_layout(self.root / self.files[index], **self.options)
        if index and layout.names != self.first_layout.names:
            raise ValueError(
                f"{layout.path} has columns {', '.join(layout.names)}; {self.first_layout.path} has "
                f"{', '.join(self.first_layout.names)}"
            )
        return layout


def label_steps(files: SequenceFiles, classes: Sequence[str] | None, regression: bool, dtype: str) -> Labels:
    """Infer the meaning of the labels of steps from the first file.

    Parameters
    ----------
    regression : bool
        Labels are targets of `dtype`.
    dtype : str
        "float32" or "float64".

    Raises
    ------
    ValueError
        If a label is invalid, or is a name and `classes` is None.
    """
    if regression:
        return Targets(dtype)
    layout = files.first_layout
    finder = LabelFinder(classes)
    for rows in scan_rows(layout):
        texts = [layout.parse(line, number)[1] for number, line in enumerate(rows.lines(), rows.first_line)]
        try:
            finder.add(texts)
        except LabelError as error:
            raise layout.error(rows.first_line + error.position, layout.label or 0, error.cause) from None
    found = finder.result()
    if isinstance(found, ClassNames) and classes is None:
        raise layout.error(layout.first_line, layout.label or 0, "labels are texts; name all of them in classes=[...]")
    return found


def label_sequences(
    files: SequenceFiles, classes: Sequence[str] | None, regression: bool, dtype: str
) -> tuple[list[Any], list[str] | None]:
    """Read one label for each file from `labels.csv`.

    Parameters
    ----------
    files : SequenceFiles
        The files; `labels.csv` is in their root.
    classes : sequence of str or None
        Names of the classes; None infers them from the labels.
    regression : bool
        Labels are targets of `dtype`.
    dtype : str
        "float32" or "float64".

    Returns
    -------
    labels : list
        One for each file, in the order of `files`.
    classes : list of str or None
        Names of the classes, if they have names.

    Raises
    ------
    ValueError
        If a label is invalid, or a file has none or more than one.
    """
    layout = read_layout(
        files.root / LABELS_FILE,
        "label",
        header=True,
        features=["name"],
        delimiter=",",
        dtype=dtype,
        missing=None,
    )
    known = {key: name for name in files.files for key in (name[: -len(SUFFIX)], name)}
    texts: dict[str, bytes] = {}
    lines: dict[str, int] = {}
    for rows in scan_rows(layout):
        for number, line in enumerate(rows.lines(), rows.first_line):
            fields = layout.split(line, number)
            written = fields[layout.features[0]].decode(errors="replace")
            name = known.get(written)
            if name is None or name in texts:
                reason = "is no sequence here" if name is None else f"has a label in line {lines[name]} already"
                raise layout.error(number, layout.features[0], f"{written!r} {reason}")
            texts[name], lines[name] = fields[layout.label or 0], number
    missing = [name for name in files.files if name not in texts]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"{layout.path} has no label for {missing[0]}{others}")
    labels: Labels = Targets(dtype)
    if not regression:
        finder = LabelFinder(classes)
        try:
            finder.add(list(texts.values()))
        except LabelError as error:
            raise layout.error([*lines.values()][error.position], layout.label or 0, error.cause) from None
        labels = finder.result()
    values = []
    for name in files.files:
        try:
            values.append(labels.value(texts[name]))
        except ValueError as error:
            raise layout.error(lines[name], layout.label or 0, str(error)) from None
    return values, labels.classes


@dataclass(frozen=True)
class FoundSequences:
    """The files of sequences below a folder.

    Attributes
    ----------
    files : list of str
        Paths below the folder, with forward slashes.
    folders : dict of str to list of str, or None
        The sorted files of each sub-folder; None if the files are in the folder itself.
    walk : FolderWalk
        Counts the files that were left out.
    """

    files: list[str]
    folders: dict[str, list[str]] | None
    walk: FolderWalk


def find_sequences(root: Path, follow_links: bool) -> FoundSequences:
    """Find all sequences below `root`; raise `ValueError` as `FolderWalk` does."""
    walk = FolderWalk(root, (SUFFIX,), follow_links, f"not {SUFFIX} files")
    entries = walk.entries()
    folders = {
        entry.name: sorted(walk.files(entry.name), key=lambda path: list(map(_natural, path.split("/"))))
        for entry in entries
        if entry.is_dir()
    }
    files = {entry.name for entry in entries if not entry.is_dir()} - {LABELS_FILE}
    flat = sorted((name for name in files if name.lower().endswith(SUFFIX)), key=_natural)
    nested = [file for found in folders.values() for file in found]
    if flat and nested:
        raise ValueError(
            f"{root} holds sequences, {flat[0]} for one, and so do its sub-folders, {nested[0]} for one; "
            "put all of them into sub-folders, one for each class, or none of them"
        )
    if nested:
        return FoundSequences(nested, folders, walk)
    for name in sorted(files.difference(flat)):
        walk.left_out.add(name, f"not {SUFFIX} files")
    return FoundSequences(flat, None, walk)


def _natural(name: str) -> tuple[list[Any], str]:
    """Return a key that sorts `2.csv` before `10.csv`, and breaks the tie of `02.csv` and `2.csv` by their text."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], name
