"""WebDataset shards that tests share."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import etl

Members = list[tuple[str, bytes]]


def write(path: Path, members: Members, format: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def numbered(path: Path, first: int, count: int) -> Path:
    """Samples whose images hold their number, repeated that many times, and whose labels are it."""
    return write(
        path,
        [
            pair
            for number in range(first, first + count)
            for pair in ((f"{number:04d}.jpg", b"%d " % number * (number + 1)), (f"{number:04d}.cls", b"%d" % number))
        ],
    )


def contents(source: etl.Tar) -> list[tuple[bytes, int]]:
    records = [source[number] for number in range(len(source))]
    return [(record["features"].tobytes(), record["label"]) for record in records]
