"""Profiles choose how much is measured, and the environment chooses the profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from asv._stats import is_different
from asv_runner.statistics import compute_stats

import benchmarks
from benchmarks.cells import (
    AXES_VARIABLE,
    BACKENDS,
    CPUS_VARIABLE,
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


@pytest.mark.parametrize("name", PROFILES)
def test_asv_sees_a_difference_with_the_rounds_of_a_profile(name: str) -> None:
    fast = [1 + number / 100 for number in range(PROFILES[name]["rounds"])]
    slow = [2 * each for each in fast]
    assert is_different(fast, slow, *(compute_stats(each, 1)[1] for each in (fast, slow)))


def test_the_number_of_rounds_can_be_set_for_interleaved_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROUNDS_VARIABLE, "1")
    assert chosen_profile().rounds == 1


@pytest.mark.parametrize("rounds", ["0", "many", "-1"])
def test_a_number_of_rounds_that_measures_nothing_is_refused(rounds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROUNDS_VARIABLE, rounds)
    with pytest.raises(ValueError, match=f"FAIR_ETL_ROUNDS='{rounds}': give a number from 1"):
        chosen_profile()


def test_the_axes_can_be_chosen_and_nothing_else_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AXES_VARIABLE, "heap,workers")
    for name in ("quick", "check"):
        monkeypatch.setenv(PROFILE_VARIABLE, name)
        cells = cells_to_measure(chosen_profile())
        assert {(cell.strategy, cell.heap) for cell in cells if cell.batch_size == 32} == {
            (strategy, heap) for strategy in ("raw", "async-raw") for heap in ("default", "retain")
        }
        assert {cell.workers for cell in cells} == {"thread 1", "thread 2", "process 2"}
        assert len(cells) == 7


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


def test_metrics_with_fewer_cpus_have_a_version_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CPUS_VARIABLE, raising=False)
    versions = {chosen_profile().version}
    for cpus in ("1", "2"):
        monkeypatch.setenv(CPUS_VARIABLE, cpus)
        versions.add(chosen_profile().version)
    assert len(versions) == 3


@pytest.mark.parametrize(
    ("profile", "cells"),
    # quick: 4 strategies, 3 more batch sizes.
    # full: besides, 3 dtypes, for 2 strategies 2 more settings of GC and heap "retain", 5 prefetch sizes, 2 workers, 5
    # formats, 3 stages, inference, 2 numbers of ranks, 4 strategies of 3 workloads, 2 updaters, 2 strategies with new
    # buffers, 3 with a cold page cache, and in the grid 3 dtypes of 3 strategies.
    [("quick", 7), ("full", 62), ("check", 2)],
)
def test_a_profile_measures_one_axis_at_a_time_or_the_grid(
    profile: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(BACKENDS) > 1:
        cells += {"quick": 0, "full": 16, "check": 0}[profile]  # the second backend
    monkeypatch.setenv(PROFILE_VARIABLE, profile)
    assert len(cells_to_measure(chosen_profile())) == cells
