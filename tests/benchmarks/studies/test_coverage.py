"""The study of how often a comparison is wrong: runs whose intervals are known, and a real run of it."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import etl
from benchmarks.console import wide_console
from benchmarks.studies import coverage
from benchmarks.studies.coverage import DELAYED_RATIO, Run, describe, main, simulate
from etl.demonstration import digits


def run_of(ratio: float, rounds: int = 8) -> Run:
    """Return a comparison of three strategies, of which the last took `ratio` times as long as the others."""
    noise = [0.99, 1.01, 1.0, 1.005, 0.995, 1.01, 0.99, 1.0][:rounds]
    equal = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.0][:rounds]
    return Run({"raw": equal, "a": noise, "b": [ratio * each for each in noise]}, 30.0)


def test_comparisons_with_an_interval_that_excludes_1_are_counted_and_those_without_intervals_are_not() -> None:
    runs = [run_of(1.0), run_of(1.05), run_of(0.9), run_of(1.3, rounds=3)]
    assert describe(runs).startswith("2 of 3 comparisons have an interval of 95% that excludes 1: 66.7%, between 20.8%")
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
    simulate(wide_console(), tables=2)
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("max-t", "Bonferroni", "heavy tails"))


@pytest.mark.slow
def test_a_run_has_the_walls_of_all_arms_and_one_round_gives_no_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, samples = tmp_path / "digits", tmp_path / "samples.jsonl"
    digits(source, samples=60)
    quick = [str(source), "--rounds", "1", "--records", "40", "--budget", "2", "--runs", "1"]
    assert main([*quick, "--samples", str(samples)]) == 0
    first = json.loads(samples.read_text().splitlines()[-1])["result"]
    assert {name: len(walls) for name, walls in first["walls"].items()} == {"raw": 1, "a": 1, "b": 1}
    assert main([*quick, "--delayed", "--samples", str(tmp_path / "delayed.jsonl")]) == 0
    assert "No interval: it takes 6 rounds." in capsys.readouterr().out


def test_a_comparison_that_was_interrupted_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def interrupted(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        if command[0] == "git":  # the study asks for its commit
            return run(command, **more)
        Path(command[-1]).write_text(json.dumps({"stopped_early": True, "strategies": [], "notes": []}))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", interrupted)
    samples = tmp_path / "samples.jsonl"
    assert main([str(tmp_path), "--samples", str(samples)]) == 130
    assert not samples.exists()
