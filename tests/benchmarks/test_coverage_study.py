"""The study of how often a comparison is wrong: runs whose intervals are known, and a real run of it."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

import etl
from benchmarks import coverage
from benchmarks.console import wide_console
from benchmarks.coverage import DELAYED_RATIO, Run, Study, describe, keep, main, simulate, wilson
from etl.demonstration import digits


@pytest.mark.parametrize(("wrong", "count"), [(0, 20), (3, 100), (50, 100), (20, 20)])
def test_the_bounds_of_a_proportion_are_those_of_scipy(wrong: int, count: int) -> None:
    expected = stats.binomtest(wrong, count).proportion_ci(0.95, method="wilson")
    assert wilson(wrong, count) == pytest.approx((expected.low, expected.high), abs=1e-4)


def run_of(ratio: float, rounds: int = 8) -> Run:
    """Return a comparison of three strategies, of which the last took `ratio` times as long as the others."""
    noise = [0.99, 1.01, 1.0, 1.005, 0.995, 1.01, 0.99, 1.0][:rounds]
    equal = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.0][:rounds]
    return Run({"raw": equal, "a": noise, "b": [ratio * each for each in noise]}, 30.0)


def test_comparisons_with_an_interval_that_excludes_1_are_counted_and_those_without_intervals_are_not() -> None:
    runs = [run_of(1.0), run_of(1.05), run_of(0.9), run_of(1.3, rounds=3)]
    assert describe(runs).startswith("2 of 3 comparisons have an interval of 95% that excludes 1: 66.7%")
    assert describe(runs[3:]) == "No interval: it takes 6 rounds."


def test_a_ratio_that_is_known_is_looked_for_in_the_intervals() -> None:
    runs = [Run({"plain": run_of(1.0).walls["a"], "delayed": run_of(ratio).walls["b"]}, 30.0) for ratio in (1.1, 1.0)]
    assert describe(runs, DELAYED_RATIO).startswith("1 of 2 comparisons have an interval of 95% that excludes 1.1: 50")


def test_the_delayed_loader_takes_as_much_longer_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves as it is read: the wait ends with the first reading at or after the moment."""
    clock = itertools.count(step=0.001)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))

    def load(*_: Any) -> Iterator[str]:
        for name in ("one", "two"):
            for _ in range(1000):
                next(clock)
            yield name

    monkeypatch.setattr(coverage, "plain", load)
    batches = coverage.delayed([], etl.Pipeline([]), 16)
    took = []
    for name in ("one", "two"):
        began = next(clock)
        assert next(batches) == name
        took.append(next(clock) - began)
    assert took == pytest.approx([DELAYED_RATIO * 1.0] * 2, abs=0.01)


def test_noise_is_simulated_for_each_way_of_making_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(wide_console(), tables=20)
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("max-t", "Bonferroni", "heavy tails"))


KEPT = run_of(1.0)
QUICK = ["--rounds", "1", "--records", "40", "--budget", "2"]


@pytest.mark.slow
def test_a_study_continues_where_it_stopped_and_takes_no_runs_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, samples = tmp_path / "digits", tmp_path / "samples.json"
    digits(source, samples=60)
    assert main([str(source), *QUICK, "--runs", "1", "--samples", str(samples)]) == 0
    (first,) = json.loads(samples.read_text())["runs"]
    assert {name: len(walls) for name, walls in first["walls"].items()} == {"raw": 1, "a": 1, "b": 1}
    assert main([str(source), *QUICK, "--delayed", "--runs", "1", "--samples", str(tmp_path / "delayed.json")]) == 0
    assert "No interval: it takes 6 rounds." in capsys.readouterr().out
    study = Study.from_json(json.loads(samples.read_text()))
    keep(samples, Study(study.arguments, [*study.runs, KEPT]))
    samples.with_name("samples.json.unfinished").write_text('{"arguments": [')  # an interruption left it
    assert main([str(source), *QUICK, "--runs", "2", "--samples", str(samples)]) == 0
    assert "0 of 1 comparisons" in capsys.readouterr().out
    assert main([str(source), *QUICK, "--size", "32", "--runs", "2", "--samples", str(samples)]) == 2
    assert "holds comparisons by etl compare" in capsys.readouterr().err


def test_a_comparison_that_was_interrupted_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        Path(command[-1]).write_text(json.dumps({"stopped_early": True, "strategies": [], "notes": []}))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", interrupted)
    samples = tmp_path / "samples.json"
    assert main([str(tmp_path), "--samples", str(samples)]) == 130
    assert not samples.exists()


@pytest.mark.slow
def test_a_study_that_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = tmp_path / "samples.json"
    assert main([str(tmp_path / "nothing"), "--samples", str(samples)]) == 2
    assert "nothing" in capsys.readouterr().err
    samples.write_text("[]")
    assert main([str(tmp_path / "nothing"), "--samples", str(samples)]) == 2
    assert "holds no study" in capsys.readouterr().err
