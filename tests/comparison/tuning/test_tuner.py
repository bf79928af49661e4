"""Tuning for real, on small data."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import etl
from etl.commands import main
from etl.comparison.request.answers import TuningSample
from etl.comparison.request.candidates import Candidate
from etl.comparison.run.measuring_processes import InputError, MeasuringProcesses
from etl.comparison.tuning.tuning_results import Tuning
from tests.comparison_workloads import write_table
from tests.scratch import ROOT

# The time that they have must be theirs: which settings are tried depends on it.
pytestmark = pytest.mark.alone

LOADERS = '''
import time

import numpy as np
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.004)  # as a source on another machine
        return np.full(4, index, np.float32), index % 3


def dataloader(batch_size):
    """A DataLoader as most begin with it."""
    return DataLoader(Slow(), batch_size, shuffle=True)


def records():
    return Slow()


def batches(batch_size, pause=0.02, wait=0.001):
    rows = np.random.default_rng(0).permutation(64)
    for first in range(0, 64, batch_size):
        time.sleep(pause)
        indices = rows[first:first + batch_size]
        yield np.repeat(indices[:, None], 4, 1).astype(np.float32), indices % 3


batches.settings = {"pause": (0.02, 0.005, 0.002)}


def other_records(batch_size, cheats=False):
    for features, labels in batches(batch_size, 0.0 if cheats else 0.02):
        yield features + cheats, labels


other_records.settings = {"cheats": (False, True)}
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_loaders.py").write_text(LOADERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def tune(project: Path, *strategies: str, seconds: float) -> Tuning:
    values: dict[str, Any] = {"batch_size": 8, "compute": "simulated:10ms", "tuning_cache": str(project / "cache")}
    return etl.tune("my_loaders:records", strategies, budget=seconds * len(strategies), **values)


def test_a_data_loader_without_workers_is_told_to_have_some(project: Path) -> None:
    tuning = tune(project, "mine=my_loaders:dataloader", seconds=40.0)
    (mine,) = tuning.strategies
    assert mine.name == "mine"
    assert mine.given["num_workers"] == 0
    assert mine.chosen["num_workers"] >= 2
    assert mine.best.ratio is not None
    assert mine.best.ratio.estimate < 0.8
    assert "num_workers" in mine.advice()
    assert mine.best.is_finalist
    assert mine.as_given.costs.seconds > mine.best.costs.seconds
    # The second run is free.
    again = tune(project, "mine=my_loaders:dataloader", seconds=40.0)
    assert again.strategies[0].is_cached
    assert again.strategies[0].chosen == mine.chosen
    assert again.seconds < 10


def test_declared_settings_are_varied_and_other_records_are_not_accepted(project: Path) -> None:
    tuning = tune(project, "good=my_loaders:batches", "bad=my_loaders:other_records", seconds=30.0)
    good, bad = tuning.strategies
    assert good.chosen["pause"] in (0.002, 0.005)
    assert bad.chosen == {}
    cheating = next(each for each in bad.configurations if each.settings.get("cheats"))
    assert cheating.costs.seconds < bad.as_given.costs.seconds
    assert cheating.dropped.startswith("it loads other records")
    assert not cheating.is_on_front


def test_the_command_writes_a_configuration_that_a_script_uses(project: Path, table: Path) -> None:
    call = ["etl", "tune", str(table), "--strategy", "async-presaved", "--label", "kind", "--batch-size", "16"]
    call += ["--compute", "simulated:2ms", "--budget", "25s", "--toml", "tuned.toml", "--json", "tuned.json"]
    done = subprocess.run(
        [sys.executable, "-m", *call],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": "/usr/bin:/bin", "HOME": str(project), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    values: Mapping[str, Any] = json.loads((project / "tuned.json").read_text())
    (tuned,) = values["strategies"]
    assert tuned["advice"].split(":")[0] == "async-presaved"
    assert tuned["advice"][:40] in " ".join(done.stdout.split())
    assert main(shlex.split("presave --config tuned.toml")) == 0
    with etl.from_config("tuned.toml", threads=False) as train:
        assert sum(batch.records for batch in train) == 96
        chosen = {**tuned["given"], **tuned["chosen"]}
        assert train.prefetch_size == chosen["prefetch_size"]


def test_limits_are_kept(project: Path, table: Path) -> None:
    settings = {"table_options": {"label": "kind"}, "batch_size": 16, "compute": "simulated:2ms", "tuning_cache": ""}
    tuning = etl.tune(str(table), ["presaved"], budget=15, max_disk_nbytes=64, **settings)
    (saved,) = tuning.strategies
    assert not saved.is_recommended
    assert "--max-disk" in saved.advice()
    assert tuning.fastest is None


def test_a_budget_that_starting_uses_up_still_measures_what_was_given_and_keeps_it(
    project: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = MeasuringProcesses.tune

    def fail_for_raw(processes: MeasuringProcesses, candidate: Candidate, *arguments: Any) -> TuningSample:
        if candidate.strategy == "raw":
            raise InputError("record 7 of it is damaged")
        return take(processes, candidate, *arguments)

    monkeypatch.setattr(MeasuringProcesses, "tune", fail_for_raw)
    settings = {"table_options": {"label": "kind"}, "batch_size": 16, "compute": "simulated:2ms"}
    tuning = etl.tune(str(table), ["presaved", "raw"], budget=0.1, tuning_cache=str(project / "cache"), **settings)
    (saved,) = tuning.strategies
    assert (saved.name, saved.chosen, saved.as_given.trials) == ("presaved", {}, 1)
    assert tuning.failed == {"raw": "record 7 of it is damaged"}
    assert len(list((project / "cache").iterdir())) == 1


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path, 96)


def test_etl_compare_has_a_loader_as_given_and_tuned(project: Path) -> None:
    report = etl.compare(
        "my_loaders:records",
        {"mine": "my_loaders:batches", "other": "raw"},
        batch_size=8,
        compute="simulated:5ms",
        rounds=1,
        tune_seconds=25.0,
        tuning_cache="",
    )
    names = [each.name for each in report.strategies]
    assert names == ["mine", "mine (tuned)", "other"]
    assert report.strategies[1].settings["pause"] < 0.02
    assert report.strategies[1].parts.wall_seconds < report.strategies[0].parts.wall_seconds
    assert [each.name for each in report.tuning] == ["mine", "other"]
    assert report.tuning[0].advice in report.notes
