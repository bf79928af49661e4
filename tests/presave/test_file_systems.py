"""File systems without locks, or that cannot flush folders, hold whole stores; errors of the disk are still errors."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import presave
from presave import files
from presave.folder_lock import FolderLock

RECORDS = [{"x": index} for index in range(60)]
UNSUPPORTED = ["EINVAL", "ENOTSUP", "EOPNOTSUPP", "ENOSYS"]
LIMIT_SECONDS = 60


def _fail(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, number: int, only_folders: bool = False) -> None:
    original = getattr(module, name)

    def failing(descriptor: int, *more: Any) -> Any:
        if only_folders and not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return original(descriptor, *more)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, name, failing)


@pytest.mark.parametrize("name", [*UNSUPPORTED, "EBADF", "EACCES"])
def test_a_store_is_whole_where_folders_cannot_be_flushed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(monkeypatch, os, "fsync", getattr(errno, name), only_folders=True)
    presave.write(tmp_path / "s", RECORDS, shard_nbytes=80, jobs=2).close()
    assert presave.verify(tmp_path / "s") == []
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_store_is_whole_in_a_folder_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.open

    def refuse(path: Any, *more: Any, **options: Any) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, *more, **options)

    monkeypatch.setattr(os, "open", refuse)
    presave.write(tmp_path / "s", RECORDS).close()
    assert presave.verify(tmp_path / "s") == []


@pytest.mark.parametrize("only_folders", [False, True], ids=["all", "folders"])
@pytest.mark.parametrize("name", ["EIO", "ENOSPC", "EDQUOT"])
def test_an_error_of_the_disk_gives_no_store(
    name: str, only_folders: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        _fail(failing, os, "fsync", getattr(errno, name), only_folders)
        with pytest.raises(presave.StoreError, match="make room or repair the disk"):
            presave.write(tmp_path / "s", RECORDS, shard_nbytes=80)
    assert not (tmp_path / "s").exists()
    presave.write(tmp_path / "s", RECORDS, shard_nbytes=80).close()


@pytest.mark.parametrize("name", ["EIO", "EACCES"])
def test_a_file_that_cannot_be_flushed_is_an_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    _fail(monkeypatch, os, "fsync", getattr(errno, name))
    with pytest.raises(OSError, match=os.strerror(getattr(errno, name))):
        files.flush(tmp_path / "file")


@pytest.mark.parametrize("name", [*UNSUPPORTED, "ENOLCK", "EBADF"])
def test_without_locks_a_write_is_interrupted_resumed_and_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(monkeypatch, fcntl, "flock", getattr(errno, name))
    seen: list[presave.Progress] = []

    def stop(_: presave.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        presave.write(tmp_path / "s", RECORDS, shard_nbytes=80, progress=stop)
    presave.write(tmp_path / "s", RECORDS, shard_nbytes=80, progress=seen.append).close()
    assert seen[-1].resumed == 10
    assert presave.verify(tmp_path / "s") == []
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


PROGRAM = """
import errno, fcntl, os, sys, presave

def flock(*_):
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

fcntl.flock = flock

class Records(list):
    def __getitem__(self, index):
        if index == 25:
            print("in the middle", flush=True)
            sys.stdin.read(1)
        return super().__getitem__(index)

presave.write(sys.argv[1], Records({"x": index} for index in range(60)), shard_nbytes=80)
"""


@pytest.mark.parametrize("is_killed", [False, True], ids=["running", "killed"])
def test_without_locks_a_second_writer_waits_its_turn(
    is_killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(monkeypatch, fcntl, "flock", errno.ENOTSUP)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "s")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        for _ in range(2):
            with pytest.raises(presave.StoreError, match="another process is writing"):
                presave.write(tmp_path / "s", RECORDS, shard_nbytes=80)
        if is_killed:
            process.kill()
            assert process.wait(LIMIT_SECONDS) == -signal.SIGKILL
            presave.write(tmp_path / "s", RECORDS, shard_nbytes=80).close()
        else:
            process.communicate("x", LIMIT_SECONDS)
            assert process.returncode == 0
    assert presave.verify(tmp_path / "s") == []
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("owner", ["", "elsewhere 00 pid:[1] process 1 started 2 ab"], ids=["empty", "another machine"])
def test_without_locks_the_file_of_a_process_that_cannot_be_looked_for_is_named(
    owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(monkeypatch, fcntl, "flock", errno.ENOTSUP)
    (tmp_path / ".s.partial").mkdir()
    (tmp_path / ".s.partial" / "owner").write_text(owner)
    with pytest.raises(presave.StoreError, match=r"without locks; if it has ended, delete .*\.s\.partial/owner"):
        presave.write(tmp_path / "s", RECORDS)
    assert (tmp_path / ".s.partial" / "owner").read_text() == owner


def test_releasing_a_lock_leaves_that_of_the_next_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fail(monkeypatch, fcntl, "flock", errno.ENOSYS)
    first = FolderLock(tmp_path, 0)
    (tmp_path / "owner").unlink()
    second = FolderLock(tmp_path, 0)
    first.release()
    with pytest.raises(BlockingIOError):
        FolderLock(tmp_path, 0)
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_a_lock_that_is_no_lack_of_locks_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fail(monkeypatch, fcntl, "flock", errno.EIO)
    with pytest.raises(presave.StoreError, match="make room or repair the disk"):
        presave.write(tmp_path / "s", RECORDS)
