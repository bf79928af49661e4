"""Tar in use: its index, open shards, batches, stores, threads and the command line."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import etl
import presave
from etl.commands import main
from etl.sources import tar, tar_index
from tests.readers import assert_threads_and_a_fork_read, descriptors_below
from tests.tar_files import contents, numbered, write

pytestmark = pytest.mark.usefixtures("user_cache")

INDEX = "fair-etl/tar-index"


def test_the_index_of_a_shard_with_many_members_is_kept_until_the_shard_changes(
    tmp_path: Path, user_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_index, "MIN_CACHED_MEMBERS", 20)
    path = numbered(tmp_path / "s.tar", 0, 10)
    expected = contents(etl.Tar(path))
    assert len(list((user_cache / INDEX).iterdir())) == 1
    with monkeypatch.context() as without_scanning:
        without_scanning.setattr(tar_index, "_scan", None)
        source = etl.Tar(path)
        assert contents(source) == expected
        assert source.describe(9) == "s.tar: 0009.jpg"
    numbered(path, 5, 12)
    assert [label for _, label in contents(etl.Tar(path))] == list(range(5, 17))


def test_a_damaged_or_unwritable_cache_costs_time_only(
    tmp_path: Path, user_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_index, "MIN_CACHED_MEMBERS", 1)
    path = numbered(tmp_path / "s.tar", 0, 10)
    expected = contents(etl.Tar(path))
    (kept,) = (user_cache / INDEX).iterdir()
    kept.write_bytes(kept.read_bytes()[:300])
    assert contents(etl.Tar(path)) == expected
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert contents(etl.Tar(path)) == expected


def test_a_shard_with_few_members_leaves_nothing_in_the_cache(tmp_path: Path, user_cache: Path) -> None:
    etl.Tar(numbered(tmp_path / "s.tar", 0, 10))
    assert not (user_cache / INDEX).exists()


def test_the_index_without_labels_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_index, "MIN_CACHED_MEMBERS", 1)
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
    assert_threads_and_a_fork_read(
        lambda number: source[number]["features"].tobytes(), [b"%d " % number * (number + 1) for number in range(200)]
    )


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


def test_a_store_gives_the_encoded_bytes_back(photographs: Path, tmp_path: Path) -> None:
    source = etl.Tar(shards_of(photographs, tmp_path / "shards"))
    presave.write(tmp_path / "s", etl.records(source, etl.Pipeline([])), jobs=2).close()
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
