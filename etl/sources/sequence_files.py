"""A folder with one CSV file for each sequence: its files and their labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etl.sources.csv_layout import OTHER_DELIMITERS, CsvLayout, read_first_line, read_layout
from etl.sources.csv_rows import scan_rows
from etl.sources.folder_walk import FolderWalk
from etl.sources.labels import ClassNames, LabelFinder, Labels, Targets

SUFFIX = ".csv"
LABELS_FILE = "labels.csv"
# The key of files that are in no sub-folder.
ROOT = ""


def find_sequences(walk: FolderWalk) -> dict[str, list[str]]:
    """Find all sequences below a folder.

    Return the sorted files of each sub-folder, or those in the folder itself under `ROOT`, as paths below the folder
    with forward slashes. Raises `ValueError` if files are both in the folder and in its sub-folders, and as
    `FolderWalk` does.
    """
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
            f"{walk.root} holds sequences, {flat[0]} for one, and so do its sub-folders, {nested[0]} for one; "
            "put all of them into sub-folders, one for each class, or none of them"
        )
    if nested:
        return folders
    for name in sorted(files.difference(flat)):
        walk.left_out.add(name, walk.reason)
    return {ROOT: flat}


def label_steps(layout: CsvLayout, classes: Sequence[str] | None, regression: bool) -> Labels:
    """Infer the meaning of the labels of steps from the first file, which has `layout`; for the rest see `Sequences`.

    Raises `ValueError` if a label is invalid, or if `classes` is None and a label is a name or there is none.
    """
    if regression:
        return Targets(layout.dtype)
    finder, steps = LabelFinder(classes), 0
    for rows in scan_rows(layout):
        steps += len(rows.starts)
        numbers = range(rows.first_line, rows.first_line + len(rows.starts))
        texts = [layout.parse(line, number)[1] for number, line in zip(numbers, rows.lines(), strict=True)]
        layout.add_labels(finder, texts, numbers)
    if classes is None and not steps:
        raise ValueError(f"{layout.path} holds no steps, and its labels decide for all files")
    found = finder.result()
    if isinstance(found, ClassNames) and classes is None:
        raise layout.label_error(layout.first_line, "labels are texts; name all of them in classes=[...]")
    return found


def label_sequences(
    root: Path, files: Sequence[str], classes: Sequence[str] | None, regression: bool, dtype: str
) -> tuple[list[Any], list[str] | None]:
    """Read one label for each of `files`, in their order, from `labels.csv`; for the rest see `Sequences`.

    Return also the names of the classes, if they have names. Raises `ValueError` if a label is invalid, or a file has
    none or more than one.
    """
    path = root / LABELS_FILE
    _, header = read_first_line(path)
    # Its own, since it may come from a spreadsheet, and the sequences from elsewhere.
    delimiter = next((each for each in (",", *OTHER_DELIMITERS) if each.encode() in header), ",")
    layout = read_layout(path, "label", features=["name"], delimiter=delimiter, dtype=dtype)
    known = {key: name for name in files for key in (name[: -len(SUFFIX)], name)}
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
    missing = [name for name in files if name not in texts]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"{layout.path} has no label for {missing[0]}{others}")
    labels: Labels = Targets(dtype)
    if not regression:
        finder = LabelFinder(classes)
        layout.add_labels(finder, list(texts.values()), list(lines.values()))
        labels = finder.result()
    return [layout.parse_label(labels, texts[name], lines[name]) for name in files], labels.classes


def _natural(name: str) -> tuple[list[Any], str]:
    """Return a key that sorts `2.csv` before `10.csv`, and breaks the tie of `02.csv` and `2.csv` by their text."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if number % 2 else part for number, part in enumerate(parts)], name
