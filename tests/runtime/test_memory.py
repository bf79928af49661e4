"""The memory that is left, by the system and by the control group."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from etl.runtime import resources


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own"
    path.write_text("4:memory:/job\n0::/job\n")
    return path


def test_a_group_of_version_2_has_what_its_limit_leaves_with_the_files_it_has_cached(tmp_path: Path, own: Path) -> None:
    root = tmp_path / "2"
    stat = "anon 10\ninactive_file 30\nactive_file 7"
    group(root / "job", memory__max="1000", memory__current="600", memory__stat=stat)
    assert resources.cgroup_nbytes_left(root, tmp_path / "none", own) == 430


def test_the_group_around_it_limits_it_too(tmp_path: Path, own: Path) -> None:
    root = group(tmp_path / "2", memory__max="700", memory__current="650", memory__stat="inactive_file 0")
    group(root / "job", memory__max="max", memory__current="600", memory__stat="inactive_file 0")
    assert resources.cgroup_nbytes_left(root, tmp_path / "none", own) == 50


def test_version_1(tmp_path: Path, own: Path) -> None:
    root = tmp_path / "1"
    files = {"memory__limit_in_bytes": "1000", "memory__usage_in_bytes": "900"}
    group(root / "job", **files, memory__stat="inactive_file 1\ntotal_inactive_file 20")
    assert resources.cgroup_nbytes_left(tmp_path / "none", root, own) == 120


def test_no_limit(tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resources.cgroup_nbytes_left(tmp_path, tmp_path, own) is None
    monkeypatch.setattr(resources, "cgroup_nbytes_left", lambda: None)
    assert 0 < resources.available_nbytes() <= psutil.virtual_memory().total


@pytest.mark.parametrize(("left", "available"), [(5, 5), (-3, 0)])
def test_the_smaller_one_counts(left: int, available: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "cgroup_nbytes_left", lambda: left)
    assert resources.available_nbytes() == available
