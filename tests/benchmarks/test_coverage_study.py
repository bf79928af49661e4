"""The study of how often a comparison is wrong: runs whose intervals are known, and a real run of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from benchmarks.coverage import Run, Study, describe, keep, main, wilson
from etl.demonstration import digits
from etl.measuring.statistics import Interval


@pytest.mark.parametrize(("wrong", "count"), [(0, 20), (3, 100), (50, 100), (20, 20)])
def test_the_bounds_of_a_proportion_are_those_of_scipy(wrong: int, count: int) -> None:
    expected = stats.binomtest(wrong, count).proportion_ci(0.95, method="wilson")
    assert wilson(wrong, count) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_intervals_that_exclude_1_are_counted_and_runs_without_one_are_not() -> None:
    runs = [
        Run(Interval(1.0, 0.98, 1.02, 6), 30.0),
        Run(Interval(1.05, 1.01, 1.09, 6), 32.0),
        Run(Interval(0.95, 0.9, 0.99, 6), 31.0),
        Run(Interval(1.3, None, None, 3), 10.0),
    ]
    assert describe(runs).startswith("2 of 3 intervals of 95% exclude 1: 66.7%")
    assert describe(runs[3:]) == "No interval: it takes 6 rounds."


KEPT = Run(Interval(1.0, 0.98, 1.02, 6), 30.0)
QUICK = ["--rounds", "1", "--records", "40", "--budget", "2"]


@pytest.mark.slow
def test_a_study_continues_where_it_stopped_and_takes_no_runs_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, samples = tmp_path / "digits", tmp_path / "samples.json"
    digits(source, samples=60)
    assert main([str(source), *QUICK, "--runs", "1", "--samples", str(samples)]) == 0
    (first,) = json.loads(samples.read_text())["runs"]
    assert first["interval"]["count"] == 1
    assert first["interval"]["estimate"] > 0
    assert "No interval: it takes 6 rounds." in capsys.readouterr().out
    study = Study.from_json(json.loads(samples.read_text()))
    keep(samples, Study(study.arguments, [*study.runs, KEPT]))
    samples.with_name("samples.json.unfinished").write_text('{"arguments": [')  # an interruption left it
    assert main([str(source), *QUICK, "--runs", "2", "--samples", str(samples)]) == 0
    assert "0 of 1 intervals" in capsys.readouterr().out
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
