"""The study of how often a comparison is wrong: runs whose intervals are known, and a real run of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy import stats

from benchmarks.coverage import Run, describe, keep, main, read, wilson
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


def test_a_study_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits(tmp_path / "digits", samples=60)
    samples = tmp_path / "samples.json"
    kept = Run(Interval(1.0, 0.98, 1.02, 6), 30.0)
    keep(samples, [kept])
    samples.with_name("samples.json.unfinished").write_text('[{"interval": {"esti')  # an interruption left it
    arguments = [str(tmp_path / "digits"), "--rounds", "1", "--records", "40", "--budget", "2"]
    assert main([*arguments, "--runs", "2", "--samples", str(samples)]) == 0
    first, second = read(samples)
    assert first == kept
    assert (second.interval.count, second.interval.low) == (1, None)
    assert second.interval.estimate > 0
    assert "0 of 1 intervals" in capsys.readouterr().out


def test_a_source_that_does_not_exist_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing"), "--samples", str(tmp_path / "samples.jsonl")]) == 2
    assert "nothing" in capsys.readouterr().err
