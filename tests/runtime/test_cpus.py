"""The CPUs that this process may use, by its affinity and the quotas of its control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import etl
from etl.runtime import ThreadPolicy, resources

NOTHING = etl.Pipeline([])
RECORDS = [{"features": [number], "label": number} for number in range(4)]


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


def quota(folder: Path, own: str | None, files_2: Mapping[str, str], files_1: Mapping[str, str]) -> float | None:
    own_group = folder / "own"
    if own is not None:
        write(folder, {"own": own})
    return resources.cgroup_quota(write(folder / "2", files_2), write(folder / "1", files_1), own_group)


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
    tmp_path: Path, own: str | None, files: Mapping[str, str], expected: float | None
) -> None:
    assert quota(tmp_path, own, files, {}) == expected


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
    tmp_path: Path, own: str, files: Mapping[str, str], expected: float | None
) -> None:
    assert quota(tmp_path, own, {}, files) == expected


def test_if_both_versions_are_mounted_each_has_its_own_path(tmp_path: Path) -> None:
    files_2 = {"x/cpu.max": "700000 100000"}
    files_1 = {"y/cpu.cfs_quota_us": "600000", "y/cpu.cfs_period_us": "100000"}
    assert quota(tmp_path, "4:cpu,cpuacct:/y\n1:name=systemd:/z\n0::/x", files_2, files_1) == 6.0


@pytest.mark.parametrize(("allowed", "expected"), [(None, 3), (0.2, 1), (1.5, 2), (2.0, 2), (64.0, 3)])
def test_cpus_are_the_fewer_of_affinity_and_quota_rounded_up(
    monkeypatch: pytest.MonkeyPatch, allowed: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5})
    monkeypatch.setattr(resources, "cgroup_quota", lambda: allowed)
    assert resources.available_cpus() == expected


def test_a_process_that_is_bound_to_one_cpu_has_one_thread_that_loads() -> None:
    program = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "import etl\n"
        "records = [{'features': [n], 'label': n} for n in range(4)]\n"
        "print(etl.AsyncIterator(etl.RawIterator(records, etl.Pipeline([]))).threads)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "1\n"


@pytest.mark.parametrize(("available", "compute", "expected"), [(8, 0, 8), (8, 3, 5), (2, 1, 1), (2, 2, 1), (1, 4, 1)])
def test_threads_that_load_are_the_cpus_that_compute_leaves(
    monkeypatch: pytest.MonkeyPatch, available: int, compute: int, expected: int
) -> None:
    monkeypatch.setattr("etl.runtime.thread_policy.available_cpus", lambda: available)
    iterator = etl.AsyncIterator(etl.RawIterator(RECORDS, NOTHING))
    assert iterator.threads == available
    if compute:
        with ThreadPolicy(compute=compute):
            assert iterator.threads == expected
    assert iterator.threads == available
    assert etl.AsyncIterator(etl.RawIterator(RECORDS, NOTHING), threads=7).threads == 7
    assert etl.AsyncIterator(etl.RawIterator(RECORDS, NOTHING), 0).threads == 0


def test_of_two_policies_the_inner_one_counts() -> None:
    from etl.runtime.thread_policy import compute_threads_in_force

    with ThreadPolicy(compute=2):
        with ThreadPolicy(compute=1):
            assert compute_threads_in_force() == 1
        assert compute_threads_in_force() == 2
    assert compute_threads_in_force() == 0
