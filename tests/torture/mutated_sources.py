"""Mutated files of the sources: IDX, CIFAR-10, CSV and tar."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import etl
from etl.sources.cifar10 import CLASSES
from tests import tar_files
from tests.torture.attempts import check_names
from tests.torture.mutated_input import READ, REFUSED, Input, writer
from tests.torture.mutations import mutate


def _idx_bytes(array: np.ndarray, code: int = 8) -> bytes:
    return bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def _idx(folder: Path, suffix: str) -> Input:
    images, labels = folder / f"images-idx{suffix}", folder / "labels-idx"
    labels.write_bytes(_idx_bytes(np.arange(3, dtype="u1")))
    corpus = [_idx_bytes(np.arange(3 * 2 * 2, dtype=d).reshape(3, 2, 2), code) for d, code in ((">u1", 8), (">f4", 13))]
    compress = gzip.compress if suffix else bytes
    return Input(
        [compress(content) for content in corpus],
        writer(images, lambda: list(_each(etl.Idx(images, labels)))),
        named=str(folder),
        mutate=(lambda random, content: gzip.compress(mutate(random, gzip.decompress(content)))) if suffix else None,
    )


def _idx_labels(folder: Path) -> Input:
    images, labels = folder / "images-of-labels", folder / "labels"
    images.write_bytes(_idx_bytes(np.zeros((3, 2, 2), "u1")))
    corpus = [_idx_bytes(np.arange(3).astype(d), code) for d, code in ((">u1", 8), (">i4", 12), (">i1", 9))]
    return Input(corpus, writer(labels, lambda: list(_each(etl.Idx(images, labels)))), named=str(folder))


def _each(source: Any) -> Any:
    return (source[number] for number in range(min(len(source), 10)))


def _cifar(folder: Path) -> Input:
    file, names = folder / "batch.bin", folder / "batches.meta.txt"
    classes = "\n".join(CLASSES).encode()

    def read(content: bytes) -> None:
        # Short contents are a file of class names, others of images.
        is_names = len(content) < len(classes) * 2
        file.write_bytes(bytes(3073) if is_names else content)
        names.write_bytes(content if is_names else classes)
        list(_each(etl.Cifar10(file)))

    random = np.random.default_rng(0)
    images = b"".join(bytes([label]) + random.integers(0, 255, 3072, np.uint8).tobytes() for label in (3, 9))
    return Input([images, classes], read, named=str(folder))


def _csv(folder: Path) -> Input:
    file = folder / "table.csv"
    corpus = [
        b"a,b,label\n1,2.5,0\n-3e2,4,1\n5,6,0\n",
        b'\xef\xbb\xbf"a","b,c",label\r\n1,2,"cat"\r\n3,,dog\r\n',
        b'a,b,label\n"1","2","c""at"\n3,nan,dog\n\n\n',
        b"1\t2\t3\n4\t5\t6\n",
    ]

    def read() -> str:
        outcome = REFUSED
        for settings in ({}, {"label": -1}, {"label": "label", "missing": 0.0}, {"label": 0, "regression": True}):
            for more in ({}, {"header": False, "delimiter": "\t", "dtype": "float64"}):
                with_settings: dict[str, Any] = {**settings, **more}
                try:
                    source = etl.Csv(file, **with_settings)
                    for record in _each(source):
                        assert all(np.isfinite(record["features"])) or b"inf" in file.read_bytes().lower()
                    outcome = READ
                except ValueError as error:
                    check_names(error, file)
        return outcome

    return Input(corpus, writer(file, read), ())


def _tar(folder: Path) -> Input:
    file = folder / "shard.tar"
    members = [("a/1.jpg", b"image"), ("a/1.cls", b"3"), ("a/2.png", b"x" * 600), ("a/2.cls", b"1\n")]
    formats = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    whole = [tar_files.encode(members, each) for each in formats]
    long = [("d" * 120 + "/ä" + "1.jpg", b"image")]
    whole += [tar_files.encode(long, tarfile.GNU_FORMAT), tar_files.encode(long, tarfile.PAX_FORMAT)]
    corpus = [content.rstrip(b"\0").ljust(512 * 12, b"\0") for content in whole]

    def read() -> None:
        source = etl.Tar(file)
        for number in range(len(source)):
            try:
                source[number]
            except ValueError as error:  # which names no file, since `describe` does
                assert str(error) == "the file is empty" or str(file) in str(error)  # noqa: PT017
            assert source.describe(number).startswith(file.name)
        source.close()

    return Input(corpus, writer(file, read), named=str(folder), repair=_repair_tar)


def _repair_tar(content: bytes) -> bytes:
    """The checksum of every block that looks like a header as it should be."""
    repaired = bytearray(content)
    for start in range(0, len(repaired) - 511, 512):
        block = repaired[start : start + 512]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            repaired[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    return bytes(repaired)


SOURCES: dict[str, Callable[[Path], Input]] = {
    "IDX": partial(_idx, suffix=""),
    "IDX, gzip": partial(_idx, suffix=".gz"),
    "IDX labels": _idx_labels,
    "CIFAR": _cifar,
    "CSV": _csv,
    "tar": _tar,
}
