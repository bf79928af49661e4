"""The file beside a data set that names its classes."""

from __future__ import annotations

from pathlib import Path

from presave.files import read_regular_file

LARGEST_FILE_NBYTES = 16 << 20


def read_names(path: Path) -> str:
    """The text of the file at `path`; raises `ValueError` that names it where it is no UTF-8 or far too long."""
    try:
        return read_regular_file(path, LARGEST_FILE_NBYTES).decode()
    except ValueError as error:
        raise ValueError(f"{path} does not name classes: {error}") from None
