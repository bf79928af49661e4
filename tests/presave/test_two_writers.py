"""A store is written by one process at a time, with the locks of the file system or without; the next one goes on."""

from __future__ import annotations

import errno
import fcntl
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import presave
from presave import partial_store
from presave.folder_lock import FolderLock, is_locked
from presave.partial_store import PartialStore
from tests.forked_child import forked, locks_in_a_fork
from tests.presave.records import FIRE, NBYTES, Numbered, bytes_of, fail_at

COUNT = 60
SETTINGS: dict[str, Any] = {"shard_nbytes": 10 * NBYTES}
LIMIT_SECONDS = 60
PROGRAM = """
import errno, fcntl, os, sys, presave
from tests.presave.records import NBYTES, Numbered

def flock(*_):
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

if sys.argv[2] == "no locks":
    fcntl.flock = flock

class Records(Numbered):
    def __getitem__(self, index):
        if index == 55:
            print("in the middle", flush=True)
            sys.stdin.read(1)
        return super().__getitem__(index)

presave.write(sys.argv[1], Records(60), shard_nbytes=10 * NBYTES)
"""


@pytest.mark.parametrize("locks", ["locks", "no locks"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["goes on", "killed"])
def test_while_a_process_writes_another_is_refused_and_goes_on_if_it_is_killed(
    is_killed: bool, locks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if locks == "no locks":
        fail_at(monkeypatch, fcntl, "flock", errno.ENOTSUP)
    target, partial = tmp_path / "s[1]", tmp_path / ".s[1].partial"
    command = [sys.executable, "-c", PROGRAM, target, locks]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        for _ in range(2):
            with pytest.raises(presave.StoreError, match=r"another process is writing .*s\[1\] \(in .*\.partial\)"):
                presave.write(target, Numbered(COUNT), **SETTINGS)
            with pytest.raises(presave.StoreError, match=r"s\[1\] does not exist yet: a process is writing it \(in "):
                presave.open_store(target)
        if is_killed:
            process.kill()
            assert process.wait(LIMIT_SECONDS) == -signal.SIGKILL
            _look_and_go_on(target, partial)
        else:
            process.communicate("x", LIMIT_SECONDS)
            assert process.returncode == 0
    assert presave.verify(target) == []
    assert [each.name for each in tmp_path.iterdir()] == ["s[1]"]
    presave.write(tmp_path / "whole", Numbered(COUNT), **SETTINGS).close()
    assert bytes_of(target) == bytes_of(tmp_path / "whole")


def _look_and_go_on(target: Path, partial: Path) -> None:
    """Check what `open_store` says of a write that was killed, and repeat it beside what workers have left."""
    with pytest.raises(presave.StoreError) as missing:
        presave.open_store(target)
    assert str(missing.value) == (
        f"{target} does not exist: a write of it was interrupted and left {partial}; write again to continue from there"
    )
    with pytest.raises(presave.StoreError, match="is an incomplete store: it has no manifest"):
        presave.open_store(partial)
    # Files in a worker's folder, a temporary file, and one of a longer store.
    (partial / "00005.abcdefgh").mkdir()
    (partial / "00005.abcdefgh" / "x-00005.npy").write_bytes(b"half a f")
    (partial / ".00005.done.json.abcdefgh").write_bytes(b"{")
    (partial / "x-00077.npy").write_bytes(b"of a longer store")
    records = Numbered(COUNT)
    presave.write(target, records, **SETTINGS).close()
    assert sorted(records.reads) == [0, *range(50, COUNT)]


def test_a_file_that_a_worker_adds_at_the_last_moment_is_not_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = partial_store.flush

    def flush_late(path: Path) -> None:
        if (tmp_path / ".s.partial").is_dir():
            (tmp_path / ".s.partial" / "x-00077.npy").touch()
        flush(path)

    monkeypatch.setattr(partial_store, "flush", flush_late)
    presave.write(tmp_path / "s", Numbered(COUNT), **SETTINGS).close()
    assert presave.verify(tmp_path / "s") == []
    assert [each.name for each in tmp_path.iterdir()] == ["s"]


def test_a_store_that_another_process_completed_meanwhile_is_not_changed(tmp_path: Path) -> None:
    presave.write(tmp_path / "s", Numbered(COUNT)).close()
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
        shutil.rmtree(tmp_path / ".s.partial")
        then(tmp_path / ".s.partial")

    monkeypatch.setattr(fcntl, "flock", take_away)
    with pytest.raises(presave.StoreError, match="another process is writing"):
        presave.write(tmp_path / "s", Numbered(COUNT))
    assert not list((tmp_path / ".s.partial").glob("*"))


@pytest.mark.parametrize("owner", ["", "elsewhere 00 pid:[1] process 1 started 2 ab"], ids=["empty", "another machine"])
def test_without_locks_the_file_of_a_process_that_cannot_be_looked_for_is_named(
    owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, fcntl, "flock", errno.ENOTSUP)
    (tmp_path / ".s.partial").mkdir()
    (tmp_path / ".s.partial" / "owner").write_text(owner)
    with pytest.raises(presave.StoreError, match=r"without locks; if it has ended, delete .*\.s\.partial/owner"):
        presave.write(tmp_path / "s", Numbered(COUNT))
    assert (tmp_path / ".s.partial" / "owner").read_text() == owner


def test_releasing_a_lock_leaves_that_of_the_next_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, fcntl, "flock", errno.ENOSYS)
    first = FolderLock(tmp_path)
    (tmp_path / "owner").unlink()
    second = FolderLock(tmp_path)
    first.release()
    with pytest.raises(BlockingIOError):
        FolderLock(tmp_path)
    second.release()
    assert [each.name for each in tmp_path.iterdir()] == ["lock"]


def test_a_lock_that_is_taken_only_when_its_file_was_removed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, first = fcntl.flock, FolderLock(tmp_path)
    (tmp_path / "shard").touch()

    def flock_late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        first.release(removes_folder=True)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    with pytest.raises(BlockingIOError):
        FolderLock(tmp_path)
    FolderLock(tmp_path).release()  # nothing keeps the next process out


@pytest.mark.usefixtures("network_file_system")
def test_a_process_of_another_machine_is_kept_out_where_folders_are_locked_for_one_machine(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with pytest.raises(BlockingIOError):
        FolderLock(tmp_path)
    assert is_locked(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)


def test_a_process_that_asks_if_a_store_is_being_written_does_not_keep_its_writer_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FolderLock(tmp_path).release()
    with (tmp_path / "lock").open() as asked:
        fcntl.flock(asked, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda seconds: fcntl.flock(asked, fcntl.LOCK_UN))
        FolderLock(tmp_path).release()


def test_no_process_begins_in_a_folder_that_is_being_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink, removed = Path.unlink, []

    def unlink_beside_another(path: Path, missing_ok: bool = False) -> None:
        removed.append(path.name)
        if path.name != "lock":
            with pytest.raises(BlockingIOError):
                FolderLock(path.parent)
        unlink(path, missing_ok)

    with PartialStore(tmp_path / "s", {}) as unfinished:
        monkeypatch.setattr(Path, "unlink", unlink_beside_another)
        unfinished.discard()
    assert removed == ["plan.json", "run", "lock"]
    assert list(tmp_path.iterdir()) == []


def test_after_a_failed_write_the_next_goes_on_though_a_process_that_was_forked_meanwhile_runs(tmp_path: Path) -> None:
    with locks_in_a_fork():
        with pytest.raises(OSError, match="fire"):
            presave.write(tmp_path / "s", Numbered(COUNT, {COUNT - 1: FIRE}), **SETTINGS)
        presave.write(tmp_path / "s", Numbered(COUNT), **SETTINGS).close()


@pytest.mark.parametrize("locks", ["locks", "no locks"])
def test_a_fork_does_not_release_the_lock_of_its_parent(
    locks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if locks == "no locks":
        fail_at(monkeypatch, fcntl, "flock", errno.ENOTSUP)
    lock = FolderLock(tmp_path)
    assert forked(lock.release) == 0
    with pytest.raises(BlockingIOError):
        FolderLock(tmp_path)
    lock.release()


def test_an_error_of_a_lock_that_is_no_lack_of_locks_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, fcntl, "flock", errno.EIO)
    with pytest.raises(presave.StoreError, match="make room or repair the disk"):
        presave.write(tmp_path / "s", Numbered(COUNT))
