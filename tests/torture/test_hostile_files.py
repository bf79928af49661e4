"""IDX, tar and CSV files, and lists of classes, that somebody made to fill memory, to hang or to lead elsewhere."""

from __future__ import annotations

import gzip
import os
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import etl
from etl.sources.idx import write_idx
from tests import tar_files
from tests.torture.conftest import Tally
from tests.torture.hostile import attempt, bomb, refusal

# For zlib: with gzip's header.
GZIP = 31


def _idx(code: int, *shape: int, rest: bytes = b"") -> bytes:
    return bytes([0, 0, code, len(shape)]) + b"".join(struct.pack(">I", size) for size in shape) + rest


IMAGES: dict[str, Callable[[], bytes]] = {
    "gzip that says 8 GiB and has them": lambda: bomb(8 << 30, _idx(8, 8, 1 << 15, 1 << 15), GZIP),
    "gzip that says less than it has": lambda: bomb(8 << 30, _idx(8, 2, 4, 4), GZIP),
    "gzip that says 2^96 bytes": lambda: gzip.compress(_idx(8, *[2**32 - 1] * 3)),
    "gzip of gzip": lambda: gzip.compress(bomb(8 << 30, wbits=GZIP)),
    "255 axes": lambda: bytes([0, 0, 8, 255]) + b"\xff" * 1020,
    "images of no pixels": lambda: _idx(8, 2, 0, 0),
    "2^96 bytes": lambda: _idx(8, *[2**32 - 1] * 3),
}


@pytest.mark.parametrize("name", IMAGES)
def test_a_forged_idx_file_is_refused(name: str, tmp_path: Path, tally: Tally) -> None:
    (tmp_path / "images").write_bytes(IMAGES[name]())
    write_idx(tmp_path / "labels", np.zeros(2))
    refusal(lambda: etl.Idx(tmp_path / "images", tmp_path / "labels"), str(tmp_path / "images"))
    tally("hostile input, forged IDX file", "refused, with file and reason")


@pytest.mark.parametrize("label", [2**31 - 1, -1])
def test_a_label_of_two_billion_makes_no_two_billion_classes(label: int, tmp_path: Path, tally: Tally) -> None:
    write_idx(tmp_path / "images", np.zeros((2, 4, 4)))
    (tmp_path / "labels").write_bytes(_idx(0x0C, 2, rest=struct.pack(">ii", 0, label)))
    refusal(lambda: etl.Idx(tmp_path / "images", tmp_path / "labels"), "labels: record 1 has label", str(label))
    tally("hostile input, forged IDX file", "refused, with file and reason")


def test_an_honest_gzip_file_that_packs_well_is_read(tmp_path: Path) -> None:
    write_idx(tmp_path / "images.gz", np.zeros((2000, 64, 64)))
    write_idx(tmp_path / "labels.gz", np.zeros(2000))
    assert attempt(lambda: len(etl.Idx(tmp_path / "images.gz", tmp_path / "labels.gz"))).message == "2000"


def _members(name: str) -> bytes:
    return tar_files.encode([(f"{name}.jpg", b"1"), (f"{name}.cls", b"1")])


def _header(kind: bytes, size: int, name: str = "1.jpg") -> bytes:
    info = tarfile.TarInfo(name)
    info.type = kind
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    header[124:136] = b"\x80" + size.to_bytes(11, "big") if size >= 0 else b"\xff" + (2**88 + size).to_bytes(11, "big")
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def _pax(text: bytes) -> bytes:
    return _header(b"x", len(text)) + text.ljust(-(-len(text) // 512) * 512, b"\0") + _header(b"0", 0) + bytes(1024)


TARS: dict[str, Callable[[], bytes]] = {
    "absolute name": lambda: _members("/etc/1"),
    "name above": lambda: _members("../../1"),
    "name above in its middle": lambda: _members("a/../../1"),
    "pax header of 2^60 bytes": lambda: _header(b"x", 1 << 60),
    "long name of 2^60 bytes": lambda: _header(b"L", 1 << 60),
    "pax header of -512 bytes": lambda: _header(b"x", -512),
    "member of -1024 bytes": lambda: _header(b"0", -1024) + bytes(1024),
    "member of 2^60 bytes": lambda: _header(b"0", 1 << 60) + bytes(1024),
    "pax size below zero": lambda: _pax(b"14 size=-1024\n"),
    "pax size without end": lambda: _pax(b"30 size=" + b"9" * 21 + b"\n"),
    "pax record of length 0": lambda: _pax(b"0 a=b\n" * 9),
    "pax sparse map": lambda: _pax(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"),
    "long names in a chain": lambda: (_header(b"L", 2) + b"a\0".ljust(512, b"\0")) * 5000,
    "hard link": lambda: _header(b"1", 0) + bytes(1024),
    "symbolic link": lambda: _header(b"2", 0) + bytes(1024),
    "pipe": lambda: _header(b"6", 0) + bytes(1024),
    "device": lambda: _header(b"3", 0) + bytes(1024),
}


@pytest.mark.parametrize("name", TARS)
def test_a_forged_tar_file_is_refused(name: str, tmp_path: Path, tally: Tally, user_cache: Path) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(TARS[name]())
    os.truncate(path, path.stat().st_size + (1 << 40 if "2^60" in name and "header" in name else 0))
    before = sorted(tmp_path.rglob("*"))
    refusal(lambda: etl.Tar(path), str(path))
    assert sorted(tmp_path.rglob("*")) == before
    tally("hostile input, forged tar file", "refused, with file, member and reason; nothing was unpacked")


def test_a_sample_of_gigabytes_of_nothing_is_not_read(tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "s.tar"
    path.write_bytes(_header(b"0", 1 << 40))
    os.truncate(path, (1 << 40) + 512 + 1024)

    def load() -> object:
        source = etl.sources.tar_index._members(path, path.open("rb"), path.stat().st_size)
        return next(source).size

    assert attempt(load).message == str(1 << 40)
    tally("hostile input, sample of a terabyte without blocks", "indexed without reading it")


CSVS: dict[str, Callable[[], bytes]] = {
    "a line without end": lambda: b"a,b\n" + b"1" * (65 << 20),
    "a first line without end": lambda: b"a" * (65 << 20),
    "thirty million columns": lambda: b"," * (30 << 20) + b"\n",
    "a name of digits and one letter": lambda: b"1" * 2_000_000 + b"x\n1\n",
    "a quote that stays open": lambda: b'a\n"' + b"1\n" * 100_000,
    "compressed": lambda: gzip.compress(b"a\n1\n"),
}


@pytest.mark.parametrize("name", CSVS)
def test_a_forged_csv_file_is_refused_or_read_in_bounds(name: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(CSVS[name]())
    ending = attempt(lambda: len(etl.Csv(path)))
    assert ending.kind in (None, "ValueError"), ending.message[:1000]
    assert (ending.kind is None) == (name == "a name of digits and one letter")
    assert ending.kind is None or str(path) in ending.message
    tally("hostile input, forged CSV file", "refused, with file, line and reason" if ending.kind else "read")


@pytest.mark.parametrize("text", [b"9" * 5000, b"1" * 2_000_000 + b"x"], ids=["number of 5000 digits", "digits and x"])
def test_a_label_of_digits_without_end_is_refused(text: bytes, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,label\n1,0\n1," + text + b"\n")
    ending = attempt(lambda: len(etl.Csv(path, label="label")))
    assert ending.kind == "ValueError"
    assert ending.message.startswith(f"{path}, line 3, column 'label'")
    tally("hostile input, forged CSV file", "refused, with file, line and reason")


@pytest.mark.parametrize("name", ["classes.txt", "batches.meta.txt"])
@pytest.mark.parametrize("content", [b"\xff\xfe", None], ids=["no text", "a terabyte"])
def test_names_of_classes_that_are_none_are_refused(
    name: str, content: bytes | None, tmp_path: Path, tally: Tally
) -> None:
    (tmp_path / name).write_bytes(content or b"")
    if content is None:
        os.truncate(tmp_path / name, 1 << 40)
    if name == "classes.txt":
        tar_files.numbered(tmp_path / "s.tar", 0, 2)
        refusal(lambda: etl.Tar(tmp_path / "s.tar"), str(tmp_path / name))
    else:
        (tmp_path / "test_batch.bin").write_bytes(bytes(3073))
        refusal(lambda: etl.Cifar10(tmp_path, "test"), str(tmp_path / name))
    tally("hostile input, forged list of classes", "refused, with file and reason")
