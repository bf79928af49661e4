"""A store is written completely or not at all."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave
from presave.partial_store import PartialStore
from tests.presave.records import FIRE, NBYTES, Numbered, bytes_of

LIMIT_SECONDS = 60


class WhoWrites:
    """Records that hold the identifier of the process that made them."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "process": os.getpid()}


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("error", [FIRE, KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_error_in_a_record_is_raised_and_leaves_no_store(jobs: int, error: BaseException, tmp_path: Path) -> None:
    with pytest.raises(type(error)) as raised:
        presave.write(tmp_path / "s", Numbered(100, {57: error}), jobs=jobs, shard_nbytes=5 * NBYTES)
    assert raised.value.args == error.args
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("jobs", [1, 3])
def test_an_error_before_the_first_complete_shard_leaves_nothing_behind(jobs: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="fire"):
        presave.write(tmp_path / "s", Numbered(100, {57: FIRE}), jobs=jobs, shard_nbytes=1 << 20)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", presave.formats())
def test_workers_of_a_failed_write_do_not_spoil_the_next_one(name: str, tmp_path: Path) -> None:
    # With shards of one record, the other workers are creating files at the moment of the error.
    for broken in (2, 5, 8, 11):
        target = tmp_path / str(broken)
        with pytest.raises(OSError, match="fire"):
            presave.write(target, Numbered(20, {broken: FIRE}), format=name, jobs=8, shard_nbytes=1)
        presave.write(target, Numbered(20), format=name, jobs=8, shard_nbytes=1).close()
        assert presave.verify(target) == []
    assert len(list(tmp_path.iterdir())) == 4


def test_workers_stop_soon_after_an_error_in_another_shard(tmp_path: Path) -> None:
    given_up, read = threading.Event(), []

    class Slow(Numbered):
        thread_safe = True

        def __getitem__(self, index: int) -> dict[str, Any]:
            if index >= 50:
                given_up.wait(LIMIT_SECONDS)
                read.append(index)
            return super().__getitem__(index)

    with pytest.raises(OSError, match="fire"):
        presave.write(tmp_path / "s", Slow(100, {1: FIRE}), jobs=2, shard_nbytes=50 * NBYTES)
    given_up.set()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name.startswith("Thread-"):
            thread.join(LIMIT_SECONDS)
    assert len(read) < 50
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["npy", "pickle"])
def test_nothing_is_at_the_path_until_the_store_is_complete_and_progress_ends_with_its_size(
    name: str, tmp_path: Path
) -> None:
    target, seen, existed = tmp_path / "s", [], []

    def look(progress: presave.Progress) -> None:
        seen.append(progress)
        existed.append(target.exists())

    with presave.write(target, Numbered(256), format=name, jobs=2, shard_nbytes=64 * NBYTES, progress=look) as store:
        held = np.cumsum([shard.records for shard in store.manifest.shards]).tolist()
    assert len(held) > 1
    assert [progress.records for progress in seen] == held
    assert not any(existed)
    last = seen[-1]
    on_disk = sum(file.stat().st_size for file in target.iterdir() if file.name != "manifest.json")
    assert last == presave.Progress(256, 256, on_disk, 0, 0, last.seconds)
    assert last.nbytes == store.nbytes
    assert last.records_per_second == 256 / last.seconds
    assert last.seconds_left == 0


@pytest.mark.parametrize("there", ["store", "file", "folder", "dangling link"])
def test_an_existing_target_is_refused_and_left_as_it_is(there: str, tmp_path: Path) -> None:
    target = tmp_path / "s"
    if there == "store":
        presave.write(target, [{"x": 1}]).close()
    elif there == "file":
        target.write_text("mine")
    elif there == "folder":
        target.mkdir()
    else:
        target.symlink_to(tmp_path / "nowhere")
    before = os.lstat(target)
    with pytest.raises(presave.StoreError, match=r"s exists already; delete it or choose another path"):
        presave.write(target, [{"x": 2}])
    assert os.lstat(target).st_mtime_ns == before.st_mtime_ns
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.usefixtures("_loky")
def test_joblib_processes_write_each_record_and_the_same_bytes_every_time(tmp_path: Path) -> None:
    with presave.write(tmp_path / "s", WhoWrites(), jobs=2, shard_nbytes=16 * 5) as store:
        written = store.gather(range(20))
    assert os.getpid() not in written["process"]
    assert written["index"].tolist() == list(range(20))
    with pytest.raises(OSError, match="fire"):
        presave.write(tmp_path / "t", Numbered(20, {17: FIRE}), jobs=2, shard_nbytes=NBYTES)
    assert not (tmp_path / "t").exists()
    for name in ("t", "u"):
        presave.write(tmp_path / name, Numbered(20), jobs=2, shard_nbytes=NBYTES).close()
    assert bytes_of(tmp_path / "t") == bytes_of(tmp_path / "u")


def test_if_a_written_store_cannot_be_opened_the_error_says_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_descriptors(path: Path, *_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    finish = PartialStore.finish

    def finish_and_run_out(self: PartialStore, manifest: Any) -> None:
        finish(self, manifest)
        monkeypatch.setattr(os, "open", out_of_descriptors)

    monkeypatch.setattr(PartialStore, "finish", finish_and_run_out)
    with pytest.raises(presave.StoreError, match="store is written and complete but cannot be opened"):
        presave.write(tmp_path / "store", [{"x": 1}])
    monkeypatch.undo()
    assert presave.verify(tmp_path / "store") == []


def test_a_store_has_the_permissions_of_any_new_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    presave.write(tmp_path / "s", [{"x": 1}]).close()
    assert (tmp_path / "s").stat().st_mode == (tmp_path / "folder").stat().st_mode
