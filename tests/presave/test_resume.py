"""An interrupted write continues after its last complete shard and gives the bytes of an uninterrupted one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave
from presave.manifest import Skipped
from presave.partial_store import RUN_NAME, PartialStore, ShardFolder
from tests.presave.records import FIRE, NBYTES, Numbered, bytes_of, flip, interrupt

COUNT, SHARD_RECORDS = 400, 50  # pickle takes 128 in a shard
LAST_IS_BROKEN = {COUNT - 1: FIRE}


class Ragged(Numbered):
    ragged = ("x",)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full((index % 7, 2), super().__getitem__(index)["y"])}


def _write(target: Path, records: presave.RecordSequence, name: str = "npy", **settings: Any) -> dict[str, bytes]:
    presave.write(target, records, format=name, shard_nbytes=SHARD_RECORDS * NBYTES, **settings).close()
    return bytes_of(target)


def _fail(target: Path, records: presave.RecordSequence, **settings: Any) -> None:
    with pytest.raises(OSError, match="fire"):
        _write(target, records, **settings)


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("kind", [Numbered, Ragged])
def test_after_an_error_the_same_call_reads_only_missing_records_and_gives_the_same_bytes(
    kind: type[Numbered], jobs: int, tmp_path: Path
) -> None:
    _fail(tmp_path / "s", kind(COUNT, {COUNT - 3: FIRE}), jobs=jobs)
    assert not (tmp_path / "s").exists()
    again, seen = kind(COUNT), []
    written = _write(tmp_path / "s", again, jobs=jobs, progress=seen.append)
    assert written == _write(tmp_path / "whole", kind(COUNT))
    resumed = seen[-1].resumed
    assert resumed > 0
    if kind is Numbered:
        # Besides those, record 0, to infer the schema, and the first of the complete shards, unless that is record 0.
        assert len(again.reads) - (COUNT - resumed) in (1, 2)
    assert {Counter(again.reads)[index] for index in range(COUNT - 10, COUNT - 1)} == {1}
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", presave.formats())
def test_a_write_interrupted_after_every_shard_reads_each_record_once(name: str, tmp_path: Path) -> None:
    records, interrupts = Numbered(COUNT), 0
    while not (tmp_path / "s").exists():
        try:
            _write(tmp_path / "s", records, name, progress=interrupt)
        except KeyboardInterrupt:
            interrupts += 1
    shards = presave.load_manifest(tmp_path / "s").shards
    assert interrupts == len(shards) > 1
    reads = Counter(records.reads)
    assert {reads[index] for index in range(1, COUNT)} == {1}
    assert bytes_of(tmp_path / "s") == _write(tmp_path / "whole", Numbered(COUNT), name)


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _edit(file: Path) -> None:
    content = file.read_text()
    file.write_text(content.replace('"records": 50', '"records": 49'))
    assert file.read_text() != content


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        *((part, damage) for part in ("x-00001.npy", "00001.done.json") for damage in (Path.unlink, _truncate, flip)),
        ("00001.done.json", _edit),
    ],
)
def test_a_damaged_shard_of_an_interrupted_write_is_written_again(
    part: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    _fail(tmp_path / "s", Numbered(COUNT, LAST_IS_BROKEN))
    damage(tmp_path / ".s.partial" / part)
    again = Numbered(COUNT)
    assert _write(tmp_path / "s", again) == _write(tmp_path / "whole", Numbered(COUNT))
    assert {*range(SHARD_RECORDS, 2 * SHARD_RECORDS)} <= {*again.reads}
    assert SHARD_RECORDS - 1 not in again.reads


def test_a_shard_completed_after_its_write_was_given_up_is_removed(tmp_path: Path) -> None:
    def commit_late(folder: Path) -> None:
        with ShardFolder(folder, 0, range(3)) as shard:
            file = shard.path / "x.npy"
            file.write_bytes(b"rows")
            for note in folder.glob("*"):  # like `discard` while a worker still writes into the folder
                if note.is_file():
                    note.unlink()
            shard.commit([file], 3, {}, ())

    with PartialStore(tmp_path / "store", {}) as unfinished, pytest.raises(presave.StoreError, match="was given up"):
        commit_late(unfinished.folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_committing", [False, True])
def test_a_worker_of_an_earlier_write_leaves_the_files_of_the_next(
    is_committing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.npy"

    def begin_the_next_write(*_: object, **__: object) -> None:
        (tmp_path / RUN_NAME).write_text("next")
        file.write_text("of the next")
        raise FileNotFoundError

    def commit() -> None:
        with ShardFolder(tmp_path, 0, range(4)) as shard:
            (shard.path / "x.npy").write_text("of the earlier")
            if is_committing:
                monkeypatch.setattr("presave.partial_store.write_atomically", begin_the_next_write)
            else:
                with suppress(FileNotFoundError):
                    begin_the_next_write()
            shard.commit([shard.path / "x.npy"], 4, {}, ())

    (tmp_path / RUN_NAME).write_text("earlier")
    with pytest.raises(FileNotFoundError if is_committing else presave.StoreError):
        commit()
    assert file.read_text() == "of the next"


def test_markers_without_a_plan_are_ignored(tmp_path: Path) -> None:
    with PartialStore(tmp_path / "store", {}) as unfinished, ShardFolder(unfinished.folder, 0, range(3)) as shard:
        shard.commit([], 0, {}, (Skipped(0, "of another store"),))
    (unfinished.folder / "plan.json").unlink()
    with presave.write(tmp_path / "store", [{"x": 1}, {"x": 2}, {"x": 3}]) as store:
        assert len(store) == 3
