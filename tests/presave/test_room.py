"""Free space is checked before anything is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave


def _free(nbytes: int) -> Any:
    """Return what `shutil.disk_usage` returns for a disk with `nbytes` bytes free."""
    return type(shutil.disk_usage("/"))(10**9, 10**9 - nbytes, nbytes)


class Sized(list):
    """Records of which only the first may be read."""

    def __getitem__(self, index: Any) -> Any:
        assert index == 0, "read on although the disk is full"
        return super().__getitem__(index)


def test_a_disk_with_too_little_room_is_refused_before_the_second_record_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Sized({"x": np.zeros(125_000)} for _ in range(40))  # 1 MB each
    asked: list[Path] = []
    free = _free(39_999_999)

    def usage(path: Path) -> Any:
        asked.append(Path(path))
        return free

    monkeypatch.setattr(shutil, "disk_usage", usage)
    said = r"s needs about 40,000,000 bytes more and 39,999,999 bytes are free there; make room or"
    with pytest.raises(presave.StoreError, match=said):
        presave.write(tmp_path / "deep" / "s", records)
    assert asked == [tmp_path / "deep" / ".s.partial"]
    assert not list((tmp_path / "deep").iterdir())


def test_a_continued_write_needs_room_only_for_the_missing_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(list):
        def __getitem__(self, index: Any) -> Any:
            if index == 35:
                raise OSError("fire")
            return super().__getitem__(index)

    records = [{"x": np.zeros(12_500)} for _ in range(40)]  # 100 kB each
    with pytest.raises(OSError, match="fire"):
        presave.write(tmp_path / "s", Broken(records), shard_nbytes=1_000_000)
    free = _free(1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    with presave.write(tmp_path / "s", records, shard_nbytes=1_000_000) as store:
        assert len(store) == 40
