"""A store is written completely or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from joblib.externals import loky

import presave
from presave.partial_store import PartialStore

every_format = pytest.mark.parametrize("name", presave.formats())
LIMIT_SECONDS = 60


class Failing:
    """`count` records of 40 bytes; record `broken` raises `error`."""

    thread_safe = True

    def __init__(self, broken: int, error: BaseException, count: int = 100) -> None:
        self.broken = broken
        self.error = error
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.broken:
            raise self.error
        return {"x": np.full(4, index), "y": index}


class WhoWrites:
    """Records that hold the identifier of the process that made them."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "process": os.getpid()}


@pytest.fixture
def _loky() -> Iterator[None]:
    with joblib.parallel_config(backend="loky", n_jobs=2):
        yield
    loky.get_reusable_executor().shutdown(wait=True)


@every_format
@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("error", [OSError("the disk is on fire"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_error_in_a_record_is_raised_and_leaves_no_store(
    name: str, jobs: int, error: BaseException, tmp_path: Path
) -> None:
    with pytest.raises(type(error)) as raised:
        presave.write(tmp_path / "s", Failing(57, error), format=name, jobs=jobs, shard_nbytes=40 * 5)
    assert raised.value.args == error.args
    assert not (tmp_path / "s").exists()


@every_format
@pytest.mark.parametrize("jobs", [1, 3])
def test_an_error_before_the_first_complete_shard_leaves_nothing_behind(name: str, jobs: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="fire"):
        presave.write(tmp_path / "s", Failing(57, OSError("fire")), format=name, jobs=jobs, shard_nbytes=1 << 20)
    assert not list(tmp_path.iterdir())


@every_format
def test_workers_of_a_failed_write_do_not_spoil_the_next_one(name: str, tmp_path: Path) -> None:
    # With shards of one record, the other workers are creating files at the moment of the error.
    for broken in range(2, 12):
        target = tmp_path / str(broken)
        with pytest.raises(OSError, match="fire"):
            presave.write(target, Failing(broken, OSError("fire"), 20), format=name, jobs=8, shard_nbytes=1)
        presave.write(target, Failing(-1, OSError(), 20), format=name, jobs=8, shard_nbytes=1).close()
        assert presave.verify(target) == []
        assert len(list(tmp_path.iterdir())) == broken - 1


def test_workers_stop_soon_after_an_error_in_another_shard(tmp_path: Path) -> None:
    given_up, read = threading.Event(), []

    class Slow(Failing):
        thread_safe = True

        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 1:
                raise ValueError("broken")
            if index >= 50:
                given_up.wait(LIMIT_SECONDS)
                read.append(threading.current_thread())
            return super().__getitem__(index)

    with pytest.raises(ValueError, match="broken"):
        presave.write(tmp_path / "s", Slow(-1, OSError()), jobs=2, shard_nbytes=40 * 50)
    given_up.set()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name.startswith("Thread-"):
            thread.join(LIMIT_SECONDS)
    assert len(read) < 50
    assert not list(tmp_path.iterdir())


@every_format
def test_nothing_is_at_the_path_until_the_store_is_complete(name: str, tmp_path: Path) -> None:
    target, seen = tmp_path / "s", []

    def look(progress: presave.Progress) -> None:
        seen.append((target.exists(), progress.records, progress.total))

    records = Failing(-1, OSError(), 256)
    with presave.write(target, records, format=name, jobs=2, shard_nbytes=40 * 64, progress=look) as store:
        held = np.cumsum([shard.records for shard in store.manifest.shards]).tolist()
    assert seen == [(False, written, 256) for written in held]
    assert len(held) > 1
    assert presave.verify(target) == []


@every_format
def test_progress_ends_with_the_size_of_the_store(name: str, tmp_path: Path) -> None:
    seen: list[presave.Progress] = []
    with presave.write(
        tmp_path / "s", Failing(-1, OSError()), format=name, shard_nbytes=999, progress=seen.append
    ) as store:
        assert seen[-1] == presave.Progress(100, 100, store.nbytes, 0, 0, seen[-1].seconds)
        assert seen[-1].records_per_second == 100 / seen[-1].seconds
        assert seen[-1].seconds_left == 0
    on_disk = sum(file.stat().st_size for file in (tmp_path / "s").iterdir() if file.name != "manifest.json")
    assert seen[-1].nbytes == on_disk


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
        writers = set(store.gather(range(20))["process"].tolist())
        assert store.gather(range(20))["index"].tolist() == list(range(20))
    assert os.getpid() not in writers
    with pytest.raises(OSError, match="fire"):
        presave.write(tmp_path / "t", Failing(57, OSError("fire")), jobs=2, shard_nbytes=40)
    assert not (tmp_path / "t").exists()
    presave.write(tmp_path / "t", Failing(-1, OSError()), jobs=2, shard_nbytes=40).close()
    presave.write(tmp_path / "u", Failing(-1, OSError()), jobs=2, shard_nbytes=40).close()
    assert {file.name: file.read_bytes() for file in (tmp_path / "t").iterdir()} == {
        file.name: file.read_bytes() for file in (tmp_path / "u").iterdir()
    }


KILLED = """
import sys, presave

class Endless:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index == 57:
            print("in the middle", flush=True)
            sys.stdin.read()
        return {"x": index}

presave.write(sys.argv[1], Endless(), format=sys.argv[2], shard_nbytes=80)
"""


@every_format
@pytest.mark.parametrize("target", ["photos.store", "photos[1]"])
def test_after_a_killed_write_open_store_explains_what_is_left(name: str, target: str, tmp_path: Path) -> None:
    if name == "torch":
        pytest.importorskip("torch")
    command = [sys.executable, "-c", KILLED, str(tmp_path / target), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        process.kill()
        assert process.wait(LIMIT_SECONDS) == -signal.SIGKILL
    (partial,) = tmp_path.iterdir()
    assert partial.name == f".{target}.partial"
    with pytest.raises(presave.StoreError) as missing:
        presave.open_store(tmp_path / target)
    assert str(missing.value) == (
        f"{tmp_path / target} does not exist: a write of it was interrupted and left {partial}; write again to "
        "continue from there"
    )
    with pytest.raises(presave.StoreError, match="is an incomplete store: it has no manifest"):
        presave.open_store(partial)


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
