"""Profiles choose how much is measured, and the environment chooses the profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import benchmarks
from benchmarks.cells import (
    AXES_VARIABLE,
    BACKENDS,
    GRID_AXES,
    PROFILE_VARIABLE,
    ROUNDS_VARIABLE,
    cells_to_measure,
    chosen_profile,
)

PROFILES = json.loads((Path(benchmarks.__file__).parent / "profiles.json").read_text())


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


def test_the_axes_can_be_chosen_and_nothing_else_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AXES_VARIABLE, "heap,workers")
    for name in PROFILES:
        monkeypatch.setenv(PROFILE_VARIABLE, name)
        cells = cells_to_measure(chosen_profile())
        assert {cell.heap for cell in cells} == {"default", "retain"}
        assert {cell.workers for cell in cells} == {"thread 1", "thread 2", "process 2"}
        assert len(cells) == 5


def test_an_unknown_axis_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AXES_VARIABLE, "heap,batchsize")
    with pytest.raises(ValueError, match=r"'batchsize' is not one of strategy, batch_size, "):
        chosen_profile()


def test_metrics_of_different_profiles_have_different_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = set()
    for name in PROFILES:
        monkeypatch.setenv(PROFILE_VARIABLE, name)
        versions.add(chosen_profile().version)
    assert len(versions) == 3


@pytest.mark.parametrize(
    ("profile", "cells"),
    # quick: the base point, and each axis varied alone: 3 more strategies, 2 batch sizes, 3 dtypes, 2 GC, 1 heap,
    # 5 formats, 3 stages, inference; the base point of what loads ahead, and 4 prefetch sizes and 2 workers.
    # full: 4 strategies x 3 batch sizes x 4 dtypes x 3 GC x 2 heaps, and those 16 that quick adds to them.
    [("quick", 28), ("full", 306), ("check", 2)],
)
def test_a_profile_measures_one_axis_at_a_time_or_the_grid(
    profile: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(BACKENDS) > 1:
        cells += {"quick": 1, "full": 288, "check": 0}[profile]  # the second backend
    monkeypatch.setenv(PROFILE_VARIABLE, profile)
    assert len(cells_to_measure(chosen_profile())) == cells


def test_the_grid_leaves_out_compute_and_the_axes_that_only_some_strategies_have() -> None:
    assert GRID_AXES == ("strategy", "batch_size", "dtype", "backend", "garbage_collection", "heap")
