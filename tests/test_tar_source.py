"""Tar: WebDataset shards, where their samples lie, and what is said about damaged ones."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import etl
import presave
from etl.commands import main
from etl.sources import tar, tar_index

Members = list[tuple[str, bytes]]
PAIRS: Members = [("a/0001.jpg", b"first"), ("a/0001.cls", b"3"), ("a/0002.png", b"second one"), ("a/0002.cls", b"1\n")]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, empty."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "fair-etl" / "tar-index"


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


def descriptors_below(root: Path) -> list[Path]:
    targets = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for target in targets if target.is_relative_to(root)]


def test_a_record_is_the_bytes_of_the_image_and_the_label_of_a_sample(tmp_path: Path) -> None:
    source = etl.Tar(write(tmp_path / "s.tar", PAIRS))
    assert contents(source) == [(b"first", 3), (b"second one", 1)]
    assert source[0]["features"].dtype == np.uint8
    assert source.describe(1) == "s.tar: a/0002.png"
    assert source.classes is None
    with pytest.raises(IndexError, match=r"record 2 of .*, which holds 2"):
        source[2]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["x" * 90, "folder/" * 14 + "n" * 60, "ü" * 40, "/absolute", "../../above", "./here"])
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


def test_the_key_is_what_stands_before_the_first_dot_of_the_files_name(tmp_path: Path) -> None:
    members = [
        ("v1.5/a.jpg", b"A"),
        ("v1.5/a.cls", b"0"),
        ("v1.5/b.left.JPEG", b"B"),
        ("v1.5/b.json", b"{}"),
        ("v1.5/b.CLS", b"1"),
    ]
    source = etl.Tar(write(tmp_path / "s.tar", members))
    assert contents(source) == [(b"A", 0), (b"B", 1)]


def test_folders_hidden_files_and_files_without_extension_belong_to_no_sample(tmp_path: Path) -> None:
    members = [("._1.jpg", b"macOS"), ("README", b"text"), *PAIRS[:2], ("a/.x.jpg", b"hidden"), *PAIRS[2:]]
    with tarfile.open(tmp_path / "s.tar", "w") as file:
        folder = tarfile.TarInfo("a")
        folder.type = tarfile.DIRTYPE
        file.addfile(folder)
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    assert contents(etl.Tar(tmp_path / "s.tar")) == [(b"first", 3), (b"second one", 1)]


def test_samples_without_labels_give_records_without(tmp_path: Path) -> None:
    source = etl.Tar(write(tmp_path / "s.tar", [("1.jpg", b"one"), ("1.txt", b"words"), ("2.jpg", b"two")]))
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


def test_classes_are_given_or_the_lines_of_a_file_beside_the_shards(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tar", PAIRS)
    (tmp_path / "classes.txt").write_text("cat\nrain frog\ndog\nowl\n")
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
            r"sample 1 has no image \(\.jpg, .*\) among its members cls; the members of a sample stand",
        ),
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
    with pytest.raises(etl.RecordError, match=r"\(s\.tar: 1\.jpg\): failed at stage 'read': the file is empty"):
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
        (10, "is no tar file, or damaged after its beginning"),
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
        for nbytes in {*range(0, end, 256), *range(end - 20, end + 512, 31)}:
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


def test_the_index_of_a_shard_with_many_members_is_kept_until_the_shard_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_index, "CACHED_FROM_MEMBERS", 20)
    path = numbered(tmp_path / "s.tar", 0, 10)
    expected = contents(etl.Tar(path))
    assert len(list(cache.iterdir())) == 1
    with monkeypatch.context() as without_scanning:
        without_scanning.setattr(tar_index, "_scan", None)
        source = etl.Tar(path)
        assert contents(source) == expected
        assert source.describe(9) == "s.tar: 0009.jpg"
    numbered(path, 5, 12)
    assert [label for _, label in contents(etl.Tar(path))] == list(range(5, 17))


def test_a_damaged_or_unwritable_cache_costs_time_only(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_index, "CACHED_FROM_MEMBERS", 1)
    path = numbered(tmp_path / "s.tar", 0, 10)
    expected = contents(etl.Tar(path))
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:300])
    assert contents(etl.Tar(path)) == expected
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert contents(etl.Tar(path)) == expected


def test_a_shard_with_few_members_leaves_nothing_in_the_cache(tmp_path: Path, cache: Path) -> None:
    etl.Tar(numbered(tmp_path / "s.tar", 0, 10))
    assert not cache.exists()


def test_the_index_without_labels_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_index, "CACHED_FROM_MEMBERS", 1)
    path = write(tmp_path / "s.tar", [("1.jpg", b"one")])
    for _ in range(2):
        assert etl.Tar(path)[0].keys() == {"features"}


@pytest.mark.parametrize("give_back", [etl.Tar.close, lambda source: source.__dict__.clear()], ids=["close", "gone"])
def test_no_file_stays_open_when_the_source_is_closed_or_gone(
    give_back: Callable[[etl.Tar], None], tmp_path: Path
) -> None:
    for number in range(3):
        numbered(tmp_path / f"{number}.tar", 5 * number, 5)
    source = etl.Tar(tmp_path)
    assert descriptors_below(tmp_path) == []
    contents(source)
    assert len(descriptors_below(tmp_path)) == 3
    give_back(source)
    assert descriptors_below(tmp_path) == []


def test_only_so_many_shards_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar, "OPEN_SHARDS", 2)
    for number in range(6):
        numbered(tmp_path / f"{number}.tar", 5 * number, 5)
    source = etl.Tar(tmp_path)
    for number in np.random.default_rng(0).permutation(30).tolist():
        assert source[number]["label"] == number
        assert len(descriptors_below(tmp_path)) <= 2


def test_a_pickled_source_needs_no_scan_and_holds_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = etl.Tar(write(tmp_path / "s.tar", [("1.jpg", bytes(100_000)), ("1.cls", b"0")]))
    source[0]
    pickled = pickle.dumps(source)
    assert len(pickled) < 2_000
    monkeypatch.setattr(tar_index, "_scan", None)
    assert contents(pickle.loads(pickled)) == [(bytes(100_000), 0)]


def test_threads_and_a_forked_process_read_their_own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar, "OPEN_SHARDS", 1)  # closed and opened under the readers' hands
    for number in range(4):
        numbered(tmp_path / f"{number}.tar", 50 * number, 50)
    source = etl.Tar(tmp_path)
    faults: list[int] = []

    def read(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(200).tolist()
        wanted = {number: b"%d " % number * (number + 1) for number in order}
        faults.extend(number for number in order if source[number]["features"].tobytes() != wanted[number])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    child = os.fork()
    if child == 0:
        read(7)
        os._exit(len(faults))
    read(8)
    assert os.waitpid(child, 0)[1] == 0
    assert faults == []


def shards_of(photographs: Path, folder: Path) -> Path:
    """The photographs in two shards."""
    source = etl.ImageFolder(photographs)
    folder.mkdir()
    for shard in range(2):
        members = []
        for number in range(shard, len(source), 2):
            members.append((f"{number:04d}.jpg", source[number]["features"].tobytes()))
            members.append((f"{number:04d}.cls", b"%d" % source[number]["label"]))
        write(folder / f"train-{shard}.tar", members)
    (folder / "classes.txt").write_text("\n".join(source.classes))
    return folder


def test_batches_are_those_of_the_photographs_in_a_folder(photographs: Path, tmp_path: Path) -> None:
    order = [*range(0, 40, 2), *range(1, 40, 2)]
    folder = etl.ImageFolder(photographs)
    shards = etl.Tar(shards_of(photographs, tmp_path / "shards"))
    assert shards.classes == folder.classes
    pipeline = etl.image_pipeline(16)
    expected = list(etl.RawIterator([folder[number] for number in order], pipeline, batch_size=8))
    for one, other in zip(etl.RawIterator(shards, pipeline, batch_size=8), expected, strict=True):
        assert one.features.tobytes() == other.features.tobytes()
        assert one.labels.tobytes() == other.labels.tobytes()


@pytest.mark.parametrize("format", ["npy", "hdf5"])
def test_a_store_gives_the_encoded_bytes_back(format: str, photographs: Path, tmp_path: Path) -> None:
    source = etl.Tar(shards_of(photographs, tmp_path / "shards"))
    presave.write(tmp_path / "s", etl.records(source, etl.Pipeline([])), format=format, jobs=2).close()
    with presave.open_store(tmp_path / "s") as store:
        saved = [store[number] for number in range(len(store))]
    assert [(record["features"].tobytes(), record["label"]) for record in saved] == contents(source)


def test_the_command_decodes_shards(photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shards_of(photographs, tmp_path / "shards")
    for name, path in (("a", folder), ("b", folder / "train-*.tar")):
        assert main(["presave", str(path), str(tmp_path / name), "--size", "16"]) == 0
    with presave.open_store(tmp_path / "a") as store, presave.open_store(tmp_path / "b") as other:
        everything = store.gather(range(40))
        assert np.array_equal(everything["features"], other.gather(range(40))["features"])
        resize = etl.image_pipeline(16).until("resize")
        assert np.array_equal(everything["features"][39], resize(etl.Tar(folder)[39])["features"])
        assert store.manifest.provenance["classes"] == etl.ImageFolder(photographs).classes
    capsys.readouterr()
    os.truncate(folder / "train-1.tar", 20_000)
    assert main(["presave", str(folder), str(tmp_path / "c")]) == 2
    assert "train-1.tar was cut off within 00" in capsys.readouterr().err
