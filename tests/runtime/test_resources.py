"""The CPUs and the memory that this process may use, by its affinity, its limits and its control groups."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil
import pytest

import presave
from etl.runtime import resources
from presave import resources as resources_of_stores
from tests.programs import output_of


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below `root`, and return it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the control groups of this process in `groups`, and with their names in `own`."""
    monkeypatch.setattr(resources, "CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(resources, "OWN_GROUP", tmp_path / "own")
    return tmp_path


def quota(system: Path, own: str | None, files_2: Mapping[str, str], files_1: Mapping[str, str]) -> float | None:
    if own is not None:
        write(system, {"own": own})
    write(system / "groups", files_2)
    write(system / "groups" / "cpu", files_1)
    return resources.cgroup_quota()


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/", {}, None),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/b/cpu.max": "50000 100000"}, 0.5),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "400000 100000"}, 4.0),
        ("0::/a/b", {"a/b/cpu.max": "300000 100000", "a/cpu.max": "200000 100000", "cpu.max": "900000 100000"}, 2.0),
        ("0::/a", {"b/cpu.max": "100000 100000"}, None),
        ("0::/a", {"a/cpu.max": ""}, None),
        ("0::/gone", {"cpu.max": "200000 100000"}, 2.0),
        (None, {"cpu.max": "200000 100000"}, 2.0),
        ("not a line of a group:", {}, None),
    ],
)
def test_the_smallest_quota_of_a_group_and_those_around_it_counts(
    system: Path, own: str | None, files: Mapping[str, str], expected: float | None
) -> None:
    assert quota(system, own, files, {}) == expected


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("", {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, None),
        ("", {"cpu.cfs_quota_us": "250000", "cpu.cfs_period_us": "100000"}, 2.5),
        ("", {"cpu.cfs_quota_us": "250000"}, None),
        ("4:cpu,cpuacct:/a", {"a/cpu.cfs_quota_us": "100000", "a/cpu.cfs_period_us": "50000"}, 2.0),
        ("4:cpuset:/a", {"a/cpu.cfs_quota_us": "100000", "a/cpu.cfs_period_us": "50000"}, None),
        # In a container the root is its own group, though its path is the host's.
        ("4:cpu:/docker/1f", {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"}, 3.0),
    ],
)
def test_groups_of_version_1_count_as_well(
    system: Path, own: str, files: Mapping[str, str], expected: float | None
) -> None:
    assert quota(system, own, {}, files) == expected


def test_if_both_versions_are_mounted_each_has_its_own_path(system: Path) -> None:
    files_2 = {"x/cpu.max": "700000 100000"}
    files_1 = {"y/cpu.cfs_quota_us": "600000", "y/cpu.cfs_period_us": "100000"}
    assert quota(system, "4:cpu,cpuacct:/y\n1:name=systemd:/z\n0::/x", files_2, files_1) == 6.0


@pytest.mark.parametrize(("allowed", "expected"), [(None, 3), (0.2, 1), (1.5, 2), (2.0, 2), (64.0, 3)])
def test_cpus_are_the_fewer_of_affinity_and_quota_rounded_up(
    monkeypatch: pytest.MonkeyPatch, allowed: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5})
    monkeypatch.setattr(resources, "cgroup_quota", lambda: allowed)
    assert resources.available_cpus() == expected


def test_a_process_that_is_bound_to_one_cpu_has_one() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert resources.available_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("own", "of_launcher", "quota", "ranks", "expected"),
    [
        (64, 64, None, 1, 64),
        (64, 64, None, 8, 8),
        (8, 64, None, 8, 8),  # each rank is bound to its own
        (32, 64, None, 8, 8),  # or half of them to each half
        (32, 32, None, 4, 8),  # in a container
        (64, 64, 8.0, 4, 2),
        (2, 2, None, 4, 1),
    ],
)
def test_ranks_of_a_machine_share_the_cpus_of_their_launcher(
    monkeypatch: pytest.MonkeyPatch, own: int, of_launcher: int, quota: float | None, ranks: int, expected: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(of_launcher if process else own)))
    monkeypatch.setattr(resources, "cgroup_quota", lambda: quota)
    assert resources.rank_cpus() == expected
    monkeypatch.setattr(resources, "available_cores", lambda: max(1, resources.available_cpus() // 2))
    assert resources.rank_cores() == max(1, expected // 2)


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the topology of two cores of two CPUs each, as Linux shows it."""
    monkeypatch.setattr(resources, "CPU_TOPOLOGY", tmp_path)
    siblings = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
    return write(tmp_path, {f"cpu{cpu}/topology/thread_siblings_list": listed for cpu, listed in siblings.items()})


@pytest.mark.parametrize(
    ("allowed", "cores"), [({0, 1, 2, 3}, 2), ({0, 2}, 1), ({1, 2}, 2)], ids=["all", "one core", "two half cores"]
)
@pytest.mark.usefixtures("topology")
def test_threads_of_a_core_count_once(monkeypatch: pytest.MonkeyPatch, allowed: set[int], cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    monkeypatch.setattr(resources, "available_cpus", lambda: len(allowed))
    assert resources.available_cores() == cores


@pytest.mark.usefixtures("topology")
def test_a_quota_below_the_cores_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(resources, "available_cpus", lambda: 1)
    assert resources.available_cores() == 1


def test_a_system_that_does_not_say_has_unknown_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "CPU_TOPOLOGY", tmp_path)
    assert resources.available_cores() is None


@pytest.fixture
def groups(system: Path) -> Path:
    """The control groups, of which this process is in the one called `job`."""
    write(system, {"own": "4:memory:/job\n0::/job"})
    return system / "groups"


def memory_group(limit: str, used: str, stat: str = "inactive_file 0") -> dict[str, str]:
    """Return the files of a control group of version 2."""
    return {"memory.max": limit, "memory.current": used, "memory.stat": stat}


def test_a_group_of_version_2_has_what_its_limit_leaves_with_the_files_it_has_cached(groups: Path) -> None:
    write(groups / "job", memory_group("1000", "600", "anon 10\ninactive_file 30\nactive_file 7"))
    assert resources.cgroup_nbytes_left() == 430


def test_the_group_around_it_limits_it_too(groups: Path) -> None:
    write(groups, memory_group("700", "650"))
    write(groups / "job", memory_group("max", "600"))
    assert resources.cgroup_nbytes_left() == 50


def test_version_1(groups: Path) -> None:
    files = {"memory.limit_in_bytes": "1000", "memory.usage_in_bytes": "900"}
    write(groups / "memory" / "job", {**files, "memory.stat": "inactive_file 1\ntotal_inactive_file 20"})
    assert resources.cgroup_nbytes_left() == 120


@pytest.mark.usefixtures("groups")
def test_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resources.cgroup_nbytes_left() is None
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


def test_limits_of_the_process_count() -> None:
    program = """
import resource
import psutil
from etl.runtime.resources import available_nbytes
for kind, name in ((resource.RLIMIT_AS, "vms"), (resource.RLIMIT_DATA, "data")):
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (getattr(psutil.Process().memory_info(), name) + (200 << 20), before[1]))
    print(available_nbytes() >> 20)
    resource.setrlimit(kind, before)
"""
    assert [190 <= int(each) <= 200 for each in output_of("-c", program).split()] == [True] * 2


@pytest.mark.parametrize(
    ("limit", "usable"), [("1000", 1000), ("max", None), (str(2**63 - 4096), None)], ids=["limit", "max", "huge"]
)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("of", ["job", "."])
def test_the_memory_of_the_machine_is_that_of_its_container(
    limit: str, usable: int | None, version: int, of: str, groups: Path
) -> None:
    root, name = (groups, "memory.max") if version == 2 else (groups / "memory", "memory.limit_in_bytes")
    (root / "job").mkdir(parents=True)
    (root / of / name).write_text(limit)
    assert resources.usable_nbytes() == (usable or psutil.virtual_memory().total)


@pytest.mark.parametrize(("format", "options"), [("npy", {}), ("hdf5", {"compression": "lzf"})])
def test_reading_a_store_into_memory_takes_its_size_once(format: str, options: dict[str, str], tmp_path: Path) -> None:
    records = [{"x": np.full(5_000_000, index, np.uint8)} for index in range(6)]
    presave.write(tmp_path / "s", records, format=format, options=options, shard_nbytes=30_000_000).close()
    program = """
import resource, sys
sys.modules["numba"] = None  # loading it in the background takes memory, too
import presave
from presave.resources import psutil
presave.open_store(sys.argv[1])[0]
limit = psutil.Process().memory_info().data + 50_000_000
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
store = presave.open_store(sys.argv[1], cache="ram")
print([int(store[index]["x"][-1]) for index in (0, 5)])
"""
    assert output_of("-c", program, tmp_path / "s") == "[0, 5]\n"
