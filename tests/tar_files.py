"""Tar files that tests share, among them WebDataset shards."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import etl

Members = list[tuple[str, bytes]]


def encode(members: Members, format: int = tarfile.USTAR_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def write(path: Path, members: Members, format: int = tarfile.USTAR_FORMAT) -> Path:
    path.write_bytes(encode(members, format))
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
