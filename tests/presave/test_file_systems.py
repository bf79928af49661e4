"""File systems without locks, or that cannot flush folders, hold whole stores; errors of the disk are still errors."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import presave
from presave import files, mapped_file, partial_store
from presave.validate import MAX_DISK_COMPRESSION
from tests.presave.records import FIRE, NBYTES, Numbered, fail_at, interrupt

SETTINGS: dict[str, Any] = {"shard_nbytes": 10 * NBYTES}
UNSUPPORTED = ["EINVAL", "ENOTSUP", "EOPNOTSUPP", "ENOSYS"]


@pytest.mark.parametrize("name", [*UNSUPPORTED, "EBADF", "EACCES"])
def test_a_store_is_whole_where_folders_cannot_be_flushed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, os, "fsync", getattr(errno, name), only_folders=True)
    presave.write(tmp_path / "s", Numbered(60), jobs=2, **SETTINGS).close()
    assert presave.verify(tmp_path / "s") == []
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_store_is_whole_in_a_folder_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.open

    def refuse(path: Any, *more: Any, **options: Any) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, *more, **options)

    monkeypatch.setattr(os, "open", refuse)
    presave.write(tmp_path / "s", Numbered(60)).close()
    assert presave.verify(tmp_path / "s") == []


@pytest.mark.parametrize("name", ["EPERM", "ENOTSUP", "EIO"])
def test_stores_and_files_are_whole_where_permissions_cannot_be_set(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, os, "chmod", getattr(errno, name))
    presave.write(tmp_path / "s", Numbered(60)).close()
    assert presave.verify(tmp_path / "s") == []
    report = tmp_path / "report.json"
    for content in (b"{}", b"[]"):
        files.write_atomically(report, content, mode=files.usual_mode(report))
        assert report.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "s"]


@pytest.mark.parametrize("only_folders", [False, True], ids=["all", "folders"])
@pytest.mark.parametrize("name", ["EIO", "ENOSPC", "EDQUOT"])
def test_an_error_of_the_disk_gives_no_store(
    name: str, only_folders: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        fail_at(failing, os, "fsync", getattr(errno, name), only_folders)
        with pytest.raises(presave.StoreError, match="make room or repair the disk"):
            presave.write(tmp_path / "s", Numbered(60), **SETTINGS)
    assert not (tmp_path / "s").exists()
    presave.write(tmp_path / "s", Numbered(60), **SETTINGS).close()


def test_after_an_error_of_the_disk_no_more_shards_are_written_than_are_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Semaphore(0)

    def fail(path: Path) -> None:
        begun.release()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def wait(_: presave.Progress) -> None:
        begun.acquire()  # until the shard is being flushed: then all before it have failed

    records = Numbered(60)
    monkeypatch.setattr(partial_store, "flush", fail)
    with pytest.raises(presave.StoreError, match="make room or repair the disk"):
        presave.write(tmp_path / "s", records, progress=wait, **SETTINGS)
    assert max(records.reads) < 30


@pytest.mark.parametrize("name", ["EIO", "EACCES"])
def test_a_file_that_cannot_be_flushed_is_an_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    fail_at(monkeypatch, os, "fsync", getattr(errno, name))
    with pytest.raises(OSError, match=os.strerror(getattr(errno, name))):
        files.flush(tmp_path / "file")


@pytest.mark.parametrize("content", [b"", b"ten bytes."])
def test_a_file_is_read_whole_in_parts_and_refused_if_it_grows_meanwhile(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "file", os.read

    def grow(descriptor: int, nbytes: int) -> bytes:
        with path.open("ab") as file:
            file.write(b"!")
        return read(descriptor, nbytes)

    path.write_bytes(content)
    monkeypatch.setattr(os, "read", lambda descriptor, nbytes: read(descriptor, min(nbytes, 4)))
    assert files.read_regular_file(path, 10) == content
    monkeypatch.setattr(os, "read", grow)
    with pytest.raises(ValueError, match="it has grown while it was read"):
        files.read_regular_file(path, 10)


@pytest.mark.parametrize("name", [*UNSUPPORTED, "ENOLCK", "EBADF"])
def test_without_locks_a_write_is_interrupted_resumed_and_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, fcntl, "flock", getattr(errno, name))
    seen: list[presave.Progress] = []
    with pytest.raises(KeyboardInterrupt):
        presave.write(tmp_path / "s", Numbered(60), progress=interrupt, **SETTINGS)
    presave.write(tmp_path / "s", Numbered(60), progress=seen.append, **SETTINGS).close()
    assert seen[-1].resumed == 10
    assert presave.verify(tmp_path / "s") == []
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def _free(nbytes: int, total: int = 10**9) -> Any:
    """Return what `shutil.disk_usage` returns for a disk with `nbytes` bytes free."""
    return type(shutil.disk_usage("/"))(total, total - nbytes, nbytes)


def test_a_disk_with_too_little_room_is_refused_before_the_second_record_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Large(Numbered):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"x": np.full(125_000, float(super().__getitem__(index)["y"]))}

    records, asked, free = Large(40), [], _free(39_999_999)

    def usage(path: Path) -> Any:
        asked.append(Path(path))
        return free

    monkeypatch.setattr(shutil, "disk_usage", usage)
    said = r"s needs about 40,000,000 bytes more and 39,999,999 bytes are free there; make room or"
    with pytest.raises(presave.StoreError, match=said):
        presave.write(tmp_path / "deep" / "s", records)
    assert asked == [tmp_path / "deep" / ".s.partial"]
    assert not list((tmp_path / "deep").iterdir())
    assert records.reads == [0]


def test_room_is_not_asked_for_where_compression_saves_an_unknown_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = _free(40 * NBYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    settings: dict[str, Any] = {"format": "hdf5", **SETTINGS}
    with pytest.raises(presave.StoreError, match="s needs about 1,600 bytes more and 1,599 bytes are free there"):
        presave.write(tmp_path / "s", Numbered(40), **settings)
    presave.write(tmp_path / "s", Numbered(40), options={"compression": "gzip"}, **settings).close()


def test_a_store_is_written_where_the_free_room_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = _free(0, total=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    presave.write(tmp_path / "s", Numbered(40), **SETTINGS).close()
    fail_at(monkeypatch, os, "fsync", errno.ENOSPC)
    with pytest.raises(presave.StoreError, match="and an unknown number of bytes are free there; make room"):
        presave.write(tmp_path / "t", Numbered(40), **SETTINGS)


def test_a_continued_write_needs_room_only_for_the_missing_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="fire"):
        presave.write(tmp_path / "s", Numbered(40, {35: FIRE}), **SETTINGS)
    free = _free(10 * NBYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with presave.write(tmp_path / "s", Numbered(40), **SETTINGS) as store:
        assert len(store) == 40


def test_a_store_is_read_where_the_size_of_a_cache_or_of_a_compressed_image_is_given_for_that_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    presave.write(tmp_path / "s", Numbered(40)).close()
    cache = _free(0, total=40 * NBYTES // MAX_DISK_COMPRESSION)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: cache)
    with presave.open_store(tmp_path / "s", verify=True) as store:
        assert store[39]["y"] == 39
    (tmp_path / "s" / "y-00000.npy").unlink()
    with pytest.raises(presave.StoreError, match=r"it claims 40 records and [\d,]+ bytes, on a disk of 100 bytes"):
        presave.open_store(tmp_path / "s")


def test_a_store_is_read_where_maps_cannot_be_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libc = mapped_file._libc()

    def refuse_shared(address: None, nbytes: int, protection: int, flags: int, descriptor: int, offset: int) -> Any:
        if flags & mmap.MAP_PRIVATE:
            return libc.mmap(address, nbytes, protection, flags, descriptor, offset)
        ctypes.set_errno(errno.ENODEV)
        return mapped_file.MAP_FAILED

    without_shared = SimpleNamespace(mmap=refuse_shared, munmap=libc.munmap)
    monkeypatch.setattr(mapped_file, "_libc", lambda: without_shared)
    with presave.write(tmp_path / "s", Numbered(40), **SETTINGS) as store:
        assert store.gather([39, 3])["y"].tolist() == [39, 3]


def test_a_file_system_that_renames_no_folder_is_not_taken_for_too_many_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def rename_files(source: Path, target: Path) -> None:
        if Path(source).is_dir():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(source), None, str(target))
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename_files)
        with pytest.raises(presave.StoreError, match="s: its file system renames no folder of 13 files; mount gcsfuse"):
            presave.write(tmp_path / "s", Numbered(60), **SETTINGS)
    assert not (tmp_path / "s").exists()
    again = Numbered(60)
    presave.write(tmp_path / "s", again, **SETTINGS).close()
    assert again.reads == [0]
    assert presave.verify(tmp_path / "s") == []
