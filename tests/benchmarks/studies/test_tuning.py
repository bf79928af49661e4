"""The study of how good tuning is: its grids, and one real workload."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.datasets import DATA_VARIABLE, ROOT, find_sequences, find_table
from benchmarks.journal import Journal
from benchmarks.studies import tuning
from benchmarks.studies.tuning import KEPT, WORKLOADS, Phase, Regret, TunedWork, main, render


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


def test_data_in_a_relative_folder_are_found_again_in_the_temporary_folders_of_asv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    monkeypatch.setenv(DATA_VARIABLE, os.path.relpath(data, ROOT))
    for name in ("one suite", "another"):
        working = tmp_path / name
        working.mkdir()
        monkeypatch.chdir(working)
        assert find_table(10).resolve().parent == data.resolve()
        assert not list(working.iterdir())


def phases_of(rounds: list[dict[str, float]]) -> list[Phase]:
    settings = {"choice": {"prefetch_size": 1}, "given": {}}
    return [Phase(240.0, settings), Phase(60.0, rounds=rounds), *(Phase(60.0, rounds=rounds[:2]) for _ in KEPT[2:])]


# In the even rounds "1" is the fastest of the grid, and in the odd ones "0" and "2" are faster.
EVEN = {"choice": 1.1, "given": 2.0, "0": 1.2, "1": 1.0, "2": 1.3}
ODD = {"choice": 1.1, "given": 2.2, "0": 0.8, "1": 1.05, "2": 0.9}


def test_even_rounds_pick_the_best_of_the_grid_and_odd_rounds_judge() -> None:
    regret = Regret.of("sequences", phases_of([EVEN, ODD] * 8))
    assert regret.best == list(WORKLOADS["sequences"].combinations())[1]
    assert regret.ratio.estimate == pytest.approx(1.1 / 1.05)
    assert regret.ratio.count == 8 + len(KEPT[2:])
    assert regret.gain.estimate == pytest.approx(0.5)
    assert regret.minutes == pytest.approx((240 + 60 * len(KEPT[1:])) / 60)


def test_a_configuration_that_was_left_out_cannot_become_the_best() -> None:
    last = [{name: value for name, value in each.items() if name != "1"} for each in (EVEN, ODD)]
    assert tuning._fastest([*phases_of([EVEN, ODD]), Phase(60.0, rounds=last)], 2) == ["0", "2"]


def test_the_table_has_the_workloads_that_are_complete_and_names_their_commits(tmp_path: Path) -> None:
    path = tmp_path / "tuning.jsonl"
    journal = Journal(tuning.PHASES, path, {}, {"commit": "0123456789ab"})
    for number, phase in enumerate(phases_of([EVEN, ODD] * 8)):
        journal.note(("sequences", number), phase)
        journal.note(("digits", 0), phase)
    later = Journal(tuning.PHASES, path, {}, {"commit": "ba9876543210"})
    for number, phase in enumerate(phases_of([EVEN, ODD] * 8)):
        later.note(("table", number), phase)
    heading, rule, table, row, _, commits = render(path).splitlines()
    assert heading.count("|") == rule.count("|") == table.count("|") == row.count("|")
    assert table.startswith("| table | async-presaved |")
    assert row.startswith(
        "| sequences | async-raw | 10 | 13 | +4.8% | +4.8% to +4.8% | 0.0% | 0.50 | prefetch_size=1 |"
    )
    assert commits == "Measured at commit 0123456789ab: sequences; commit ba9876543210: table."


def test_an_odd_number_of_rounds_cannot_be_halved(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--rounds", "3"])
    assert "half to judge" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_that_was_interrupted_within_a_workload_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = TunedWork(
        "table",
        "async-raw",
        {"batch_size": 64, "compute": "simulated:1ms", "records": 256, "table_options": {"label": "kind"}},
        {"prefetch_size": (1, 2, 4)},
    )
    monkeypatch.setattr(tuning, "WORKLOADS", {"small": small})
    monkeypatch.setattr(tuning, "KEPT", (0, None, 2))
    monkeypatch.setattr(tuning, "ROWS", 512)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    call = ["--budget", "12", "--seconds", "1", "--rounds", "2"]
    call += ["--samples", str(tmp_path / "study.jsonl")]
    assert main(call) == 0
    lines = (tmp_path / "study.jsonl").read_text().splitlines(keepends=True)
    first, last = (set(json.loads(line)["result"]["rounds"][1]) for line in lines[-2:])
    assert first == {"choice", "given", "0", "1", "2"}
    assert last < first
    assert len(last) == 4
    (tmp_path / "study.jsonl").write_text("".join(lines[:-1]))
    assert main(call) == 0
    assert len((tmp_path / "study.jsonl").read_text().splitlines()) == len(lines) + 1  # and another environment
    assert "small" in capsys.readouterr().out
