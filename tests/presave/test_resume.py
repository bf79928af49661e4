"""An interrupted write continues after its last complete shard and gives the bytes of an uninterrupted one."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave
from presave.manifest import Skipped
from presave.partial_store import PartialStore, ShardFolder

every_format = pytest.mark.parametrize("name", presave.formats())
COUNT = 400
SHARD_NBYTES = 40 * 50  # 8 shards of 50 records; pickle takes 4 of 128
LIMIT_SECONDS = 60


class Counted:
    """Records of 40 bytes that count how often each is read; record `broken` raises."""

    thread_safe = True

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken
        self.reads: Counter[int] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        with self._lock:
            self.reads[index] += 1
        if index == self.broken:
            raise OSError("the disk is on fire")
        return {"x": np.full(4, index), "y": index}


def _write(target: Path, records: presave.RecordSequence, name: str, **settings: Any) -> None:
    presave.write(target, records, format=name, shard_nbytes=SHARD_NBYTES, **settings).close()


def _bytes(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def _whole(tmp_path: Path, name: str) -> dict[str, bytes]:
    """Return the bytes of an uninterrupted write."""
    _write(tmp_path / "whole", Counted(), name)
    return _bytes(tmp_path / "whole")


@every_format
@pytest.mark.parametrize("jobs", [1, 3])
def test_after_an_error_the_same_call_reads_only_missing_records_and_gives_the_same_bytes(
    name: str, jobs: int, tmp_path: Path
) -> None:
    broken = COUNT - 3
    with pytest.raises(OSError, match="fire"):
        _write(tmp_path / "s", Counted(broken), name, jobs=jobs)
    assert not (tmp_path / "s").exists()
    again, seen = Counted(), []
    _write(tmp_path / "s", again, name, jobs=jobs, progress=seen.append)
    assert _bytes(tmp_path / "s") == _whole(tmp_path, name)
    resumed = seen[-1].resumed
    assert resumed > 0
    # Record 0 is read once more, to infer the schema.
    assert sum(again.reads.values()) == COUNT - resumed + 1
    assert {again.reads[number] for number in range(COUNT - 10, COUNT)} == {1}
    assert not list(tmp_path.glob(".*"))


@every_format
def test_a_write_interrupted_after_every_shard_reads_each_record_once(name: str, tmp_path: Path) -> None:
    def interrupt(_: presave.Progress) -> None:
        raise KeyboardInterrupt

    records, interrupts = Counted(), 0
    while not (tmp_path / "s").exists():
        try:
            _write(tmp_path / "s", records, name, progress=interrupt)
        except KeyboardInterrupt:
            interrupts += 1
    with presave.open_store(tmp_path / "s", trusted=True) as store:
        shards = [shard.records for shard in store.manifest.shards]
    assert interrupts == len(shards) > 1
    assert {records.reads[number] for number in range(1, COUNT)} == {1}
    assert _bytes(tmp_path / "s") == _whole(tmp_path, name)


PROGRAM = """
import sys, numpy as np, presave

class Records:
    def __len__(self):
        return 400
    def __getitem__(self, index):
        if index == 300:
            print("in the middle", flush=True)
            sys.stdin.read()
        return {"x": np.full(4, index), "y": index}

presave.write(sys.argv[1], Records(), format=sys.argv[2], shard_nbytes=2000)
"""


def _kill_in_the_middle(target: Path, name: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(target), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        process.kill()
        assert process.wait(LIMIT_SECONDS) == -signal.SIGKILL


@every_format
def test_after_sigkill_the_same_call_in_another_process_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    if name == "torch":
        pytest.importorskip("torch")
    _kill_in_the_middle(tmp_path / "s", name)
    records = Counted()
    _write(tmp_path / "s", records, name)
    assert _bytes(tmp_path / "s") == _whole(tmp_path, name)
    before = 256 if name == "pickle" else 300
    assert sorted(records.reads) == [0, *range(before, COUNT)]


def test_an_interrupted_write_of_ragged_fields_gives_the_same_bytes(tmp_path: Path) -> None:
    def records(broken: int) -> presave.RecordSequence:
        class Ragged(Counted):
            def __getitem__(self, index: int) -> dict[str, Any]:
                return {"x": np.full((index % 7, 2), super().__getitem__(index)["y"])}

        return Ragged(broken)

    with pytest.raises(OSError, match="fire"):
        _write(tmp_path / "s", records(210), "npy", ragged=["x"])
    again = records(-1)
    _write(tmp_path / "s", again, "npy", ragged=["x"])
    _write(tmp_path / "whole", records(-1), "npy", ragged=["x"])
    assert _bytes(tmp_path / "s") == _bytes(tmp_path / "whole")
    assert sum(again.reads.values()) < COUNT  # type: ignore[attr-defined]


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _flip(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@every_format
@pytest.mark.parametrize("damage", [Path.unlink, _truncate, _flip], ids=["missing", "truncated", "flipped"])
@pytest.mark.parametrize("part", ["data", "marker"])
def test_a_damaged_shard_of_an_interrupted_write_is_written_again(
    name: str, damage: Callable[[Path], None], part: str, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="fire"):
        _write(tmp_path / "s", Counted(COUNT - 1), name)
    files = (file for file in (tmp_path / ".s.partial").iterdir() if "-00001." in file.name)
    damage(min(files) if part == "data" else tmp_path / ".s.partial" / "00001.done.json")
    again = Counted()
    _write(tmp_path / "s", again, name)
    assert _bytes(tmp_path / "s") == _whole(tmp_path, name)
    size = 128 if name == "pickle" else 50
    assert set(range(size, 2 * size)) <= again.reads.keys()
    assert size - 1 not in again.reads


def test_a_shard_with_an_edited_marker_is_written_again(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="fire"):
        _write(tmp_path / "s", Counted(COUNT - 1), "npy")
    marker = tmp_path / ".s.partial" / "00001.done.json"
    edited = marker.read_text().replace('"records": 50', '"records": 49')
    assert edited != marker.read_text()
    marker.write_text(edited)
    _write(tmp_path / "s", Counted(), "npy")
    assert _bytes(tmp_path / "s") == _whole(tmp_path, "npy")


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


def test_markers_without_a_plan_are_ignored(tmp_path: Path) -> None:
    with PartialStore(tmp_path / "store", {}) as unfinished, ShardFolder(unfinished.folder, 0, range(3)) as shard:
        shard.commit([], 0, {}, (Skipped(0, "of another store"),))
    (unfinished.folder / "plan.json").unlink()
    with presave.write(tmp_path / "store", [{"x": 1}, {"x": 2}, {"x": 3}]) as store:
        assert len(store) == 3
