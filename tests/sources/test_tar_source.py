"""Tar: WebDataset shards, the places of their samples, and errors for damaged ones."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

import etl
from etl.sources import RecordError
from tests.tar_files import Members, contents, numbered, write

pytestmark = pytest.mark.usefixtures("user_cache")

PAIRS: Members = [("a/0001.jpg", b"first"), ("a/0001.cls", b"3"), ("a/0002.png", b"second one"), ("a/0002.cls", b"1\n")]


def test_a_record_is_the_bytes_of_the_image_and_the_label_of_a_sample(tmp_path: Path) -> None:
    source = etl.Tar(write(tmp_path / "s.tar", PAIRS))
    assert contents(source) == [(b"first", 3), (b"second one", 1)]
    assert source[0]["features"].dtype == np.uint8
    assert source.describe(1) == "s.tar: a/0002.png"
    assert source.classes is None
    with pytest.raises(IndexError, match=r"record 2 of .*, which holds 2"):
        source[2]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["x" * 90, "folder/" * 14 + "n" * 60, "ü" * 40, "a..b/c", "./here"])
def test_names_of_any_kind_are_read_in_each_format_of_tar(format: int, name: str, tmp_path: Path) -> None:
    source = etl.Tar(write(tmp_path / "s.tar", [(f"{name}.jpg", b"image"), (f"{name}.cls", b"7")], format))
    assert contents(source) == [(b"image", 7)]
    assert source.describe(0) == f"s.tar: {name}.jpg"


def test_very_long_names_are_read_as_gnu_and_pax_write_them(tmp_path: Path) -> None:
    name = "n" * 300
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        members = [("1.jpg", b"one"), ("1.cls", b"1"), (f"{name}.jpg", b"long"), (f"{name}.cls", b"2")]
        source = etl.Tar(write(tmp_path / f"{kind}.tar", members, kind))
        assert contents(source) == [(b"one", 1), (b"long", 2)]


def test_the_key_is_the_part_before_the_first_dot_of_the_file_name(tmp_path: Path) -> None:
    members = [
        ("v1.5/a.jpg", b"A"),
        ("v1.5/a.cls", b"0"),
        ("v1.5/b.left.JPEG", b"B"),
        ("v1.5/b.CLS", b"1"),
    ]
    source = etl.Tar(write(tmp_path / "s.tar", members))
    assert contents(source) == [(b"A", 0), (b"B", 1)]


def test_folders_and_hidden_files_belong_to_no_sample(tmp_path: Path) -> None:
    members = [("._1.jpg", b"macOS"), *PAIRS[:2], ("a/.x.jpg", b"hidden"), *PAIRS[2:]]
    path = write(tmp_path / "s.tar", members)
    with tarfile.open(path, "a") as file:
        folder = tarfile.TarInfo("a")
        folder.type = tarfile.DIRTYPE
        file.addfile(folder)
    assert contents(etl.Tar(path)) == [(b"first", 3), (b"second one", 1)]


def test_samples_without_labels_give_records_without(tmp_path: Path) -> None:
    source = etl.Tar(write(tmp_path / "s.tar", [("1.jpg", b"one"), ("2.jpg", b"two")]))
    assert [source[number].keys() for number in range(2)] == [{"features"}, {"features"}]


def test_shards_come_from_a_folder_a_pattern_or_a_list(tmp_path: Path) -> None:
    for name, first in (("b", 5), ("a", 0), ("c", 8)):
        numbered(tmp_path / f"{name}.tar", first, {"a": 5, "b": 3, "c": 2}[name])
    for path in (tmp_path, f"{tmp_path}/*.tar", tmp_path / "[abc].tar"):
        assert [label for _, label in contents(etl.Tar(path))] == list(range(10))
        assert isinstance(etl.open_source(path), etl.Tar)
    chosen = etl.Tar([tmp_path / "c.tar", tmp_path / "b.tar"])
    assert [label for _, label in contents(chosen)] == [8, 9, 5, 6, 7]
    assert chosen.describe(2) == "b.tar: 0005.jpg"


def test_two_stars_in_a_pattern_are_any_number_of_folders(tmp_path: Path) -> None:
    (tmp_path / "x" / "y").mkdir(parents=True)
    for name, first in (("a.tar", 0), ("x/b.tar", 2), ("x/y/c.tar", 4)):
        numbered(tmp_path / name, first, 2)
    for pattern in ("**/*.tar", "**/**/*.tar"):  # two ways to the same file
        assert [label for _, label in contents(etl.Tar(tmp_path / pattern))] == list(range(6))


@pytest.mark.parametrize(
    ("mark", "end"),
    [("", "\n"), ("\ufeff", "\n"), ("", "\n\n")],
    ids=["plain", "byte order mark", "an empty line at the end"],
)
def test_classes_are_given_or_the_lines_of_a_file_beside_the_shards(mark: str, end: str, tmp_path: Path) -> None:
    path = write(tmp_path / "s.tar", PAIRS)
    (tmp_path / "classes.txt").write_text(f"{mark}cat\nrain frog\ndog\nowl{end}")
    assert etl.Tar(path).classes == ["cat", "rain frog", "dog", "owl"]
    assert etl.Tar(path, classes=list("abcde")).classes == list("abcde")
    with pytest.raises(ValueError, match=r"s\.tar: a/0001\.jpg has label 3, and there are 2 classes"):
        etl.Tar(path, classes=["cat", "dog"])


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([], r"s\.tar holds no samples"),
        (
            [("1.cls", b"0")],
            r"sample 1 has no image \(.*\.jpg, .*\) among its members cls; the members of a sample must follow",
        ),
        ([("1.a.jpg", b"x"), ("1.b.jpg", b"y")], r"sample 1 has more than one image"),
        ([("1.jpg", b"x"), ("1.png", b"y")], r"sample 1 has more than one image .*among its members jpg, png"),
        ([("1.jpg", b"x"), ("1.JPG", b"y")], r"sample 1 has two members \.jpg"),
        ([("1.jpg", b"x"), ("1.cls", b"0"), ("2.jpg", b"y")], r"sample 2 has no member \.cls, unlike those before it"),
        ([("1.jpg", b"x"), ("2.jpg", b"y"), ("2.cls", b"0")], r"sample 2 has a member \.cls, unlike those before it"),
        ([("1.jpg", b"x"), ("2.jpg", b"y"), ("1.cls", b"0")], r"sample 1 has no image"),
        ([("1.jpg", b"x"), ("1.cls", b"cat")], r"1\.cls holds b'cat', not a whole number"),
        ([("1.jpg", b"x"), ("1.cls", b"")], r"1\.cls holds b'', not a whole number"),
        ([("1.jpg", b"x"), ("1.cls", b"1" * 200)], r"1\.cls holds b'1111"),
    ],
)
def test_shards_that_are_not_made_of_samples_are_refused(members: Members, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        etl.Tar(write(tmp_path / "s.tar", members))


def test_labels_in_some_shards_only_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", PAIRS)
    write(tmp_path / "b.tar", [("1.jpg", b"x")])
    with pytest.raises(ValueError, match=r"samples of .*a\.tar have labels, those of .*b\.tar none"):
        etl.Tar(tmp_path)


def test_an_empty_image_is_an_error_that_names_it(tmp_path: Path) -> None:
    source = etl.Tar(write(tmp_path / "s.tar", [("1.jpg", b""), ("1.cls", b"0")]))
    with pytest.raises(RecordError, match=r"\(s\.tar: 1\.jpg\): failed at stage 'read': the file is empty"):
        etl.records(source, etl.image_pipeline(8))[0]


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        (tarfile.SYMTYPE, "a link"),
        (tarfile.LNKTYPE, "a link"),
        (tarfile.FIFOTYPE, "special"),
        (tarfile.GNUTYPE_SPARSE, "sparse"),
    ],
)
def test_members_that_are_no_plain_files_are_refused(type_: bytes, kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "s.tar", PAIRS)
    with tarfile.open(path, "a") as file:
        info = tarfile.TarInfo("a/0003.jpg")
        info.type, info.linkname = type_, "a/0001.jpg"
        file.addfile(info)
    with pytest.raises(ValueError, match=rf"s\.tar: member a/0003\.jpg is {kind}; only plain files can be read"):
        etl.Tar(path)


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        (10, "is not a tar file, or is damaged after its beginning"),
        (512, r"was cut off within a/0001\.jpg: it has 512 bytes, and needs 1,024 for it"),
        (514, r"was cut off within a/0001\.jpg"),
        (1024, r"has no end mark after a/0001\.jpg"),
        (1300, r"is damaged or was cut off after a/0001\.jpg"),
        (2560, r"was cut off within a/0002\.png"),
        (4096, r"has no end mark after a/0002\.cls"),
    ],
)
def test_a_shard_that_was_cut_off_is_refused_wherever_that_was(nbytes: int, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "s.tar", PAIRS)
    os.truncate(path, nbytes)
    with pytest.raises(ValueError, match=rf"s\.tar {said}"):
        etl.Tar(path)


def test_a_shard_cut_off_at_any_byte_before_its_end_mark_is_refused(tmp_path: Path) -> None:
    for kind, name in ((tarfile.USTAR_FORMAT, "n"), (tarfile.GNU_FORMAT, "n" * 200), (tarfile.PAX_FORMAT, "n" * 200)):
        whole = write(tmp_path / "whole.tar", [*PAIRS, (f"{name}.jpg", b"x"), (f"{name}.cls", b"1")], kind)
        content = whole.read_bytes()
        end = len(content.rstrip(b"\0")) // 512 * 512 + 512
        for nbytes in {*range(0, end, 256), *range(end - 20, end + 512, 97)}:
            (tmp_path / "cut.tar").write_bytes(content[:nbytes])
            with pytest.raises(ValueError, match=r"cut\.tar"):
                etl.Tar(tmp_path / "cut.tar")
        assert len(etl.Tar(whole)) == 3


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tar", PAIRS)
    content = bytearray(path.read_bytes())
    content[2048] ^= 0xFF  # in the name of the third member
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"s\.tar is damaged or was cut off after a/0001\.cls"):
        etl.Tar(path)


def test_tar_files_joined_into_one_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tar", PAIRS)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(ValueError, match=r"s\.tar goes on after its end mark; tar files joined into one"):
        etl.Tar(path)


@pytest.mark.parametrize("name", ["s.tar.gz", "s.tgz", "s.tar"])
def test_a_compressed_shard_is_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(write(tmp_path / "plain", PAIRS).read_bytes()))
    for make in (etl.Tar, etl.open_source):
        with pytest.raises(
            ValueError, match=r"is compressed with gzip, and cannot be read at random; unpack it to a pl"
        ):
            make(tmp_path / name)


def test_shards_that_are_not_there_are_named(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "nowhere.tar", "does not exist"),
        (tmp_path, r"holds no \*\.tar files"),
        (tmp_path / "*.tar", "no file matches"),
    ):
        with pytest.raises(ValueError, match=said):
            etl.Tar(path)
    with pytest.raises(ValueError, match="no shards were given"):
        etl.Tar([])
