"""A write continues a partial store only if it has the same plan and no other process is writing it."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave
from presave import partial_store
from presave.partial_store import PartialStore

LIMIT_SECONDS = 60


class Described(list):
    """60 records of 8 bytes; record `broken` raises."""

    stage = "resize"
    fingerprint = "0123"
    provenance: dict[str, Any] = {"source": "photos/"}  # noqa: RUF012

    def __init__(self, broken: int = -1, count: int = 60, dtype: type = np.int64) -> None:
        super().__init__({"x": np.asarray(number, dtype)} for number in range(count))
        self.broken = broken

    def __getitem__(self, index: Any) -> Any:
        if index == self.broken:
            raise OSError("the disk is on fire")
        return super().__getitem__(index)


def _interrupted(folder: Path) -> Path:
    """Return the target of a write that was interrupted after 5 of its 6 shards."""
    with pytest.raises(OSError, match="fire"):
        presave.write(folder / "s", Described(55), shard_nbytes=80)
    return folder / "s"


def _with(**attributes: Any) -> Described:
    records = Described()
    for name, value in attributes.items():
        setattr(records, name, value)
    return records


OTHER_PLANS: dict[str, tuple[Described, dict[str, Any], str]] = {
    "format": (Described(), {"format": "hdf5"}, "format was 'npy' and is 'hdf5'"),
    "shards": (Described(), {"shard_nbytes": 160}, "shard_records was 10 and is 20"),
    "errors": (Described(), {"on_error": "skip"}, "on_error was 'raise' and is 'skip'"),
    "number": (Described(count=61), {}, "records was 60 and is 61"),
    "dtype": (Described(dtype=np.uint64), {}, r"fields was {'x': 'int64 \[\]'} and is {'x': 'uint64 \[\]'}"),
    "stage": (_with(stage="decode"), {}, "stage was 'resize' and is 'decode'"),
    "fingerprint": (_with(fingerprint="4567"), {}, "fingerprint was '0123' and is '4567'"),
    "provenance": (_with(provenance={}), {}, "provenance was {'source': 'photos/'} and is {}"),
}


@pytest.mark.parametrize(("records", "settings", "difference"), OTHER_PLANS.values(), ids=OTHER_PLANS)
def test_the_beginning_of_another_store_is_kept_and_the_error_names_the_difference(
    records: Described, settings: dict[str, Any], difference: str, tmp_path: Path
) -> None:
    target = _interrupted(tmp_path)
    before = {file.name: file.read_bytes() for file in (tmp_path / ".s.partial").iterdir()}
    with pytest.raises(
        presave.StoreError, match=rf"\.s\.partial holds the beginning of another store.*: {difference}; "
    ):
        presave.write(target, records, **{"shard_nbytes": 80, **settings})
    after = {file.name: file.read_bytes() for file in (tmp_path / ".s.partial").iterdir()}
    assert after == before
    presave.write(target, Described(), shard_nbytes=80).close()


@pytest.mark.parametrize("options", [{}, {"compression": "lzf"}], ids=str)
def test_a_partial_store_with_another_compression_is_refused(options: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="fire"):
        presave.write(tmp_path / "s", Described(55), format="hdf5", shard_nbytes=80, options={"compression": "gzip"})
    with pytest.raises(presave.StoreError, match=r"options was {'compression': 'gzip'} and is"):
        presave.write(tmp_path / "s", Described(), format="hdf5", shard_nbytes=80, options=options)


@pytest.mark.parametrize("plan", [b"", b"[]", b"\xff", b"{"], ids=repr)
def test_a_damaged_plan_is_refused(plan: bytes, tmp_path: Path) -> None:
    target = _interrupted(tmp_path)
    (tmp_path / ".s.partial" / "plan.json").write_bytes(plan)
    with pytest.raises(presave.StoreError, match=r"its plan\.json is damaged; delete that folder, or"):
        presave.write(target, Described(), shard_nbytes=80)


PROGRAM = """
import os, sys, presave

class Records:
    stage, fingerprint, provenance = "resize", "0123", {"source": "photos/"}
    def __len__(self):
        return 60
    def __getitem__(self, index):
        if index == 55:
            print("in the middle", flush=True)
            if sys.stdin.read(1) == "":
                os._exit(1)
        return {"x": index}

presave.write(sys.argv[1], Records(), shard_nbytes=80)
"""


@contextmanager
def _process_in_the_middle(target: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROGRAM, str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        yield process


def test_a_second_process_that_writes_the_same_store_is_refused_and_disturbs_nothing(tmp_path: Path) -> None:
    target = tmp_path / "s"
    with _process_in_the_middle(target) as process:
        with pytest.raises(presave.StoreError, match=r"another process is writing .*s \(in .*\.s\.partial\)"):
            presave.write(target, Described(), shard_nbytes=80)
        process.communicate("go on", LIMIT_SECONDS)
        assert process.returncode == 0
    assert presave.verify(target) == []
    with presave.open_store(target) as store:
        assert store.gather(range(60))["x"].tolist() == list(range(60))
    assert [each.name for each in tmp_path.iterdir()] == ["s"]


def test_after_a_killed_process_another_can_write_and_its_leftovers_are_not_in_the_store(tmp_path: Path) -> None:
    target = tmp_path / "s"
    with _process_in_the_middle(target) as process:
        # What workers leave if they are killed while they write: a file in a worker's folder, and a temporary file.
        (tmp_path / ".s.partial" / "00005.abcdefgh").mkdir()
        (tmp_path / ".s.partial" / "00005.abcdefgh" / "x-00005.npy").write_bytes(b"half a f")
        (tmp_path / ".s.partial" / ".00005.done.json.abcdefgh").write_bytes(b"{")
        (tmp_path / ".s.partial" / "x-00077.npy").write_bytes(b"of a longer store")
        process.kill()
        assert process.wait(LIMIT_SECONDS) == -signal.SIGKILL
    presave.write(target, Described(), shard_nbytes=80).close()
    presave.write(tmp_path / "whole", Described(), shard_nbytes=80).close()
    assert presave.verify(target) == []
    assert sorted(each.name for each in target.iterdir()) == sorted(
        each.name for each in (tmp_path / "whole").iterdir()
    )


def test_a_file_that_a_worker_adds_at_the_last_moment_is_not_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = partial_store.flush

    def flush_late(path: Path) -> None:
        if (tmp_path / ".s.partial").is_dir():
            (tmp_path / ".s.partial" / "x-00077.npy").touch()
        flush(path)

    monkeypatch.setattr(partial_store, "flush", flush_late)
    presave.write(tmp_path / "s", Described(), shard_nbytes=80).close()
    assert presave.verify(tmp_path / "s") == []
    assert [each.name for each in tmp_path.iterdir()] == ["s"]


def test_a_store_has_the_permissions_of_any_new_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    presave.write(tmp_path / "s", Described()).close()
    assert (tmp_path / "s").stat().st_mode == (tmp_path / "folder").stat().st_mode


def test_a_store_that_another_process_completed_meanwhile_is_not_changed(tmp_path: Path) -> None:
    presave.write(tmp_path / "s", Described()).close()
    with (
        pytest.raises(presave.StoreError, match="another process has just written it"),
        PartialStore(tmp_path / "s", {}),
    ):
        pass
    assert presave.verify(tmp_path / "s") == []
    assert [each.name for each in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("then", [Path.mkdir, lambda folder: None], ids=["made anew", "gone"])
def test_a_folder_that_another_process_removed_before_it_was_locked_is_not_written_to(
    then: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_away(descriptor: int, operation: int) -> None:
        (tmp_path / ".s.partial").rmdir()
        then(tmp_path / ".s.partial")

    monkeypatch.setattr(fcntl, "flock", take_away)
    with pytest.raises(presave.StoreError, match="another process is writing"):
        presave.write(tmp_path / "s", Described())
    assert not list((tmp_path / ".s.partial").glob("*"))
