"""The memory that is left, by the system and by the control group."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

import presave
from etl.runtime import resources
from presave import resources as resources_of_stores


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


def test_stores_have_the_same_file() -> None:
    assert Path(resources_of_stores.__file__).resolve() == Path(resources.__file__).resolve()


def test_a_store_that_its_container_has_no_room_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    presave.write(tmp_path / "s", [{"x": np.zeros(1000, np.uint8)}]).close()
    monkeypatch.setattr(resources_of_stores, "cgroup_nbytes_left", lambda: 999)
    with pytest.raises(MemoryError, match=r"needs 1,000 bytes for cache='ram' and 999 bytes are free"):
        presave.open_store(tmp_path / "s", cache="ram")
    monkeypatch.setattr(resources_of_stores, "cgroup_nbytes_left", lambda: 1000)
    presave.open_store(tmp_path / "s", cache="ram").close()


@pytest.mark.parametrize("kind", ["AS", "DATA"])
def test_a_limit_of_the_process_counts(kind: str) -> None:
    program = f"""
import resource
from presave.resources import available_nbytes, psutil, _LIMITED
used = getattr(psutil.Process().memory_info(), _LIMITED[resource.RLIMIT_{kind}])
resource.setrlimit(resource.RLIMIT_{kind}, (used + (200 << 20), resource.RLIM_INFINITY))
print(available_nbytes() >> 20)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 190 <= int(done.stdout) <= 200


@pytest.mark.parametrize(
    ("limit", "usable"), [("1000", 1000), ("max", None), (str(2**63 - 4096), None)], ids=["limit", "max", "huge"]
)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("of", ["job", "."])
def test_the_memory_of_the_machine_is_that_of_its_container(
    limit: str, usable: int | None, version: int, of: str, tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, name = (tmp_path, "memory.max") if version == 2 else (tmp_path / "memory", "memory.limit_in_bytes")
    (root / "job").mkdir(parents=True)
    (root / of / name).write_text(limit)
    monkeypatch.setattr(resources, "CGROUPS", tmp_path)
    monkeypatch.setattr(resources, "OWN_GROUP", own)
    assert resources.usable_nbytes() == (usable or psutil.virtual_memory().total)


@pytest.mark.parametrize(("format", "options"), [("npy", {}), ("hdf5", {"compression": "lzf"})])
def test_reading_a_store_into_memory_takes_its_size_once(format: str, options: dict[str, str], tmp_path: Path) -> None:
    records = [{"x": np.full(10_000_000, index, np.uint8)} for index in range(6)]
    presave.write(tmp_path / "s", records, format=format, options=options, shard_nbytes=60_000_000).close()
    program = """
import resource, sys
sys.modules["numba"] = None  # loading it in the background takes memory, too
import presave
from presave.resources import psutil
presave.open_store(sys.argv[1])[0]
limit = psutil.Process().memory_info().data + 100_000_000
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
store = presave.open_store(sys.argv[1], cache="ram")
print([int(store[index]["x"][-1]) for index in (0, 5)])
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "s"], capture_output=True, text=True, check=False)
    assert done.stdout == "[0, 5]\n", done.stderr
