"""Profiles choose which cells are measured, and the environment chooses the profile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks.profile import PROFILE_VARIABLE, ROUNDS_VARIABLE, chosen_profile

FOLDER = Path(benchmarks.__file__).parent
COUNT_CELLS = "from benchmarks.end_to_end import cells_to_measure; print(len(cells_to_measure()))"


def test_quick_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROFILE_VARIABLE, raising=False)
    assert chosen_profile().name == "quick"


def test_an_unknown_profile_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROFILE_VARIABLE, "fast")
    with pytest.raises(ValueError, match=r"'fast' is not one of quick, full, check"):
        chosen_profile()


def test_the_number_of_rounds_can_be_set_for_interleaved_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROUNDS_VARIABLE, "1")
    assert chosen_profile().rounds == 1


def test_figures_of_different_profiles_have_different_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = set()
    for name in json.loads((FOLDER / "profiles.json").read_text()):
        monkeypatch.setenv(PROFILE_VARIABLE, name)
        versions.add(chosen_profile().version)
    assert len(versions) == 3


@pytest.mark.parametrize(
    ("profile", "cells"),
    # quick: the base point, and each axis varied alone: 3 more strategies, 2 batch sizes, 3 dtypes, 2 GC, 1 heap.
    # full: 4 strategies x 3 batch sizes x 4 dtypes x 3 GC x 2 heaps.
    [("quick", 12), ("full", 288), ("check", 2)],
)
def test_a_profile_measures_one_axis_at_a_time_or_the_grid(profile: str, cells: int) -> None:
    from benchmarks.cell import BACKENDS

    if len(BACKENDS) > 1:
        cells += {"quick": 1, "full": 288, "check": 0}[profile]  # the second backend
    counted = subprocess.run(
        [sys.executable, "-c", COUNT_CELLS],
        env={PROFILE_VARIABLE: profile, "PYTHONPATH": str(FOLDER.parent)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(counted.stdout) == cells
