"""Physical cores: logical CPUs that share a core count once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from etl.runtime import resources
from etl.runtime.resources import available_cores


def write_topology(folder: Path, siblings: dict[int, str]) -> Path:
    """Write the topology of CPUs as Linux shows it, and return its folder."""
    for cpu, listed in siblings.items():
        (folder / f"cpu{cpu}/topology").mkdir(parents=True)
        (folder / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{listed}\n")
    return folder


@pytest.mark.parametrize(
    ("allowed", "cores"), [({0, 1, 2, 3}, 2), ({0, 2}, 1), ({1, 2}, 2)], ids=["all", "one core", "two half cores"]
)
def test_threads_of_a_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: set[int], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    monkeypatch.setattr(resources, "available_cpus", lambda: len(allowed))
    assert available_cores(write_topology(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})) == cores


def test_a_quota_below_the_cores_is_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(resources, "available_cpus", lambda: 1)
    assert available_cores(write_topology(tmp_path, {0: "0", 1: "1"})) == 1


def test_a_system_that_does_not_say_has_unknown_cores(tmp_path: Path) -> None:
    assert available_cores(tmp_path) is None
