"""The study of how good tuning is: its grids, and one real workload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.datasets import DATA_VARIABLE, find_sequences, find_table
from benchmarks.studies import tuning
from benchmarks.studies.tuning import WORKLOADS, Regret, TunedWork, main


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_grid_has_24_combinations_of_three_dimensions(name: str) -> None:
    workload = WORKLOADS[name]
    combinations = list(workload.combinations())
    assert len(combinations) >= 24
    assert len(workload.grid) >= 3
    assert len({tuple(sorted(each.items())) for each in combinations}) == len(combinations)


def test_data_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    made = find_table(10), find_sequences(3)
    times = [each.stat().st_mtime_ns for each in made]
    assert [each.stat().st_mtime_ns for each in (find_table(10), find_sequences(3))] == times


@pytest.mark.slow
def test_a_choice_is_measured_against_its_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = TunedWork(
        "table",
        "async-raw",
        {"batch_size": 64, "compute": "simulated:1ms", "records": 256, "table_options": {"label": "kind"}},
        {"prefetch_size": (1, 2, 4)},
    )
    monkeypatch.setattr(tuning, "WORKLOADS", {"small": small})
    monkeypatch.setattr(tuning, "ROWS", 512)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    call = ["--budget", "12", "--grid-rounds", "1", "--rounds", "1"]
    call += ["--samples", str(tmp_path / "study.jsonl")]
    assert main(call) == 0
    (line,) = (tmp_path / "study.jsonl").read_text().splitlines()[1:]
    outcome = Regret.from_json(json.loads(line)["result"])
    assert outcome.combinations == 3
    assert set(outcome.rounds) == {"choice", "best 1", "best 2", "best 3", "given"}
    assert outcome.regret_high is None  # one round
    assert "small: async-raw" in capsys.readouterr().out
