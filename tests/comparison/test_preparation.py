"""User loaders before they are measured: which are tried, whose files are prepared, and whose epochs are checked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from etl.comparison.request.answers import CheckedEpoch, TriedLoader, WrittenStore
from etl.comparison.request.candidates import Candidate
from etl.comparison.run.preparation import Preparation
from etl.comparison.run.workload import Workload
from etl.comparison.tuning.tuner import _OneStrategy, _Tuner
from etl.comparison.tuning.tuning_results import Limits
from etl.measuring.processes import MeasurementError
from tests.comparison_workloads import TRIED, make_workload

MINE = Candidate("my_loaders:load", label="mine")


class FullDisk:
    """A stand-in for `MeasuringProcesses`, in which no loader can prepare its files."""

    def __init__(self) -> None:
        self.prepared: list[Candidate] = []

    def prepare(self, candidate: Candidate) -> WrittenStore:
        self.prepared.append(candidate)
        raise MeasurementError("OSError: no space left")


def tried_with_all_records(folder: Path, processes: Any) -> tuple[Workload, Preparation]:
    workload = make_workload(folder, strategies=("raw", "mine=my_loaders:load"))
    workload.tried[MINE], workload.requested[MINE] = TRIED, {"source"}
    preparation = Preparation(workload, processes, lambda phase, done, total: None)
    preparation.prepared[MINE] = WrittenStore(seconds=1.0, nbytes=1000, records=200)
    return workload, preparation


def test_a_loader_that_has_failed_prepares_nothing_for_more_records(tmp_path: Path) -> None:
    processes = FullDisk()
    workload, preparation = tried_with_all_records(tmp_path, processes)
    workload.select(50)
    preparation.prepare()
    preparation.prepare()
    workload.select(100)
    preparation.prepare()
    assert processes.prepared == [MINE]
    assert preparation.failed == {MINE: "OSError: no space left, when it prepared its files"}


def test_a_loader_that_cannot_prepare_its_files_is_not_tuned_and_the_reason_is_that(tmp_path: Path) -> None:
    processes: Any = FullDisk()
    workload, preparation = tried_with_all_records(tmp_path, processes)
    tuning = _OneStrategy(workload, processes, preparation, MINE, Limits(), lambda phase, done, total: None)
    with pytest.raises(MeasurementError, match="OSError: no space left, when it prepared its files"):
        tuning.run(time.monotonic() + 60.0)


def test_loaders_whose_result_of_tuning_is_known_are_not_tried(tmp_path: Path) -> None:
    tried: list[Candidate] = []

    class Broken:
        def try_loader(self, candidate: Candidate, seconds: float) -> tuple[WrittenStore | None, TriedLoader]:
            tried.append(candidate)
            raise MeasurementError("OSError: no such file")

    strategies = ("mine=my_loaders:load", "known=my_loaders:load")
    workload, processes = make_workload(tmp_path, strategies=strategies, tuning_cache=""), Broken()
    _Tuner(workload, [0, 1], lambda progress: None)._tune_all([MINE], processes, {}, {})  # type: ignore[arg-type]
    assert tried == [MINE]


def test_nothing_does_the_same_work_as_a_given_configuration_whose_epoch_cannot_be_checked(tmp_path: Path) -> None:
    class Damaged:
        def check(self, *asked: Any, **more: Any) -> CheckedEpoch:
            raise MeasurementError("record 7 is damaged")

    processes: Any = Damaged()
    workload, preparation = tried_with_all_records(tmp_path, processes)
    tuning = _OneStrategy(workload, processes, preparation, MINE, Limits(), lambda phase, done, total: None)
    other = tuning._arm({"num_workers": 1})
    assert not tuning._does_same_work(other)
    assert other.dropped == "the given epoch could not be checked"
