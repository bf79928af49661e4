"""Which files a source reads."""

from __future__ import annotations

import glob
from pathlib import Path

from etl.comparison.subset import Subset
from etl.sources import ImageFolder


def source_files(path: str, records: Subset) -> list[Path]:
    """The files that reading `records` of the source at `path` reads: of images those of the records themselves,
    otherwise all files that the source may have.
    """
    if isinstance(records.source, ImageFolder):
        root = records.source.root
        return [root / records.source.files[index] for index in records.indices.tolist()]
    return all_files(path)


def all_files(path: str | Path) -> list[Path]:
    """The file at `path`, all files below the folder, or all that match the pattern."""
    found = Path(path)
    if found.is_dir():
        return sorted(each for each in found.rglob("*") if each.is_file())
    return [found] if found.exists() else sorted(Path(each) for each in glob.glob(str(path)))  # noqa: PTH207 - as the source reads it
