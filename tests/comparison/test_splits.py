"""CPU splits: each strategy that loads ahead tries them in the real loop, in bounded time."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from etl.commands import main
from etl.comparison.judge.recommendation import make_notes
from etl.comparison.judge.results import Measurements, splits_of
from etl.comparison.request.answers import CheckedEpoch, TuningSample
from etl.comparison.request.candidates import Candidate, CpuSplit
from etl.comparison.request.epoch_content import EpochContent
from etl.comparison.request.settings import Settings
from etl.comparison.run.measuring_processes import InputError, MeasuringProcesses
from etl.comparison.run.workload import Workload
from etl.comparison.tuning.space import space_of
from etl.comparison.worker.profile import profile_raw_pipeline
from etl.demonstration import digits
from etl.measuring.processes import MeasurementError
from etl.measuring.sample import Spans
from etl.runtime.resources import available_cpus
from tests.comparison_workloads import TRIED, make_measurements, make_sample, make_workload
from tests.user_modules import user_module

AHEAD, PLAIN, PROCESSES = Candidate("async-raw"), Candidate("raw"), Candidate("process-raw")
MINE = Candidate("my_loaders:load", label="mine")
STORED = Candidate("async-presaved", "npy", "read")
HALVES, SHARED = CpuSplit(1, 1), CpuSplit(2, 2)


@pytest.mark.parametrize(
    ("cpus", "splits"),
    [
        (1, [CpuSplit(1, 1)]),
        (2, [CpuSplit(1, 1), CpuSplit(2, 2)]),
        (3, [CpuSplit(2, 1), CpuSplit(1, 2), CpuSplit(3, 3)]),
        (4, [CpuSplit(2, 2), CpuSplit(3, 1), CpuSplit(1, 3), CpuSplit(4, 4)]),
        (8, [CpuSplit(4, 4), CpuSplit(7, 1), CpuSplit(1, 7), CpuSplit(8, 8)]),
    ],
)
def test_splits_are_half_and_half_all_but_one_for_either_and_all_for_both(
    tmp_path: Path, cpus: int, splits: list[CpuSplit]
) -> None:
    workload = make_workload(tmp_path, cpus=cpus)
    for candidate in (AHEAD, PROCESSES, STORED):
        assert workload.splits(candidate) == splits
    assert workload.splits(PLAIN) == [CpuSplit(cpus, 0)]


def test_beside_a_device_all_but_one_load_unless_trials_say_otherwise_and_a_wait_takes_no_cpu(tmp_path: Path) -> None:
    on_device = make_workload(tmp_path, cpus=4)
    on_device.is_on_device = True
    assert on_device.splits(AHEAD)[0] == CpuSplit(1, 3)
    waits = make_workload(tmp_path, cpus=4, compute="simulated:5ms")
    assert waits.splits(AHEAD) == [CpuSplit(1, 4), CpuSplit(1, 2), CpuSplit(1, 1), CpuSplit(1, 3)]
    assert make_workload(tmp_path, cpus=4, prefetch_size=0).splits(AHEAD) == [CpuSplit(4, 0)]


def test_beside_a_loader_of_the_user_other_numbers_of_compute_threads_are_tried_where_they_matter(
    tmp_path: Path,
) -> None:
    workload = make_workload(tmp_path, cpus=4)
    assert workload.splits(MINE) == [CpuSplit(4, 0), CpuSplit(2, 0), CpuSplit(1, 0)]
    workload.plain_compute_threads = 1
    assert workload.splits(MINE) == [CpuSplit(1, 0), CpuSplit(4, 0), CpuSplit(2, 0)]
    assert workload.splits(MINE.with_settings({"compute_threads": 3})) == [CpuSplit(3, 0)]
    workload.is_on_device = True
    assert workload.splits(MINE) == [CpuSplit(1, 0)]
    assert make_workload(tmp_path, cpus=4, compute="simulated:5ms").splits(MINE) == [CpuSplit(4, 0)]


def test_each_strategy_has_the_split_that_was_chosen_for_it_and_its_other_cuts_too(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    workload.chosen = {AHEAD: SHARED}
    assert workload.threads(AHEAD) == SHARED
    assert workload.threads(PROCESSES) == HALVES
    assert workload.threads(STORED) == HALVES
    workload.chosen = {STORED: SHARED}
    assert workload.threads(replace(STORED, stage="decode")) == SHARED
    assert workload.threads(AHEAD) == HALVES


def test_a_data_set_that_is_not_thread_safe_is_read_by_one_thread_and_by_any_number_of_processes(
    tmp_path: Path,
) -> None:
    code = f"""
        from pathlib import Path
        from tests.shared_handles import Position
        def dataset():
            return Position(Path({str(tmp_path)!r}))
    """
    with user_module(tmp_path, "my_files", code):
        settings = Settings(source="my_files:dataset", strategies=("raw",), compute="simulated:1ms", batch_size=8)
        workload = Workload(settings, tmp_path, 4)
        loading = [{split.loading for split in workload.splits(each)} for each in (AHEAD, PROCESSES, STORED)]
        assert loading == [{1}, {1, 2, 3, 4}, {1, 2, 3, 4}]
        with workload.iterator(AHEAD, workload.splits(AHEAD)[0]) as iterator:
            assert iterator.threads == 1  # type: ignore[attr-defined]
        profile = profile_raw_pipeline(workload, [*workload.splits(AHEAD), *workload.splits(PROCESSES)], [1])
        [split, *_] = space_of(workload, AHEAD, same_pixels=True).dimensions
        assert {"compute_threads": 1, "loading_threads": 4} in split.choices()  # for processes
        assert all(profile.split(CpuSplit(1, each)) is not None for each in loading[1])


def measured(folder: Path, trials: dict[Candidate, dict[CpuSplit, list[float]]]) -> Measurements:
    """Return measurements with trials of splits, for 200 records in batches of 10."""
    workload = make_workload(folder, strategies=("raw", "async-raw", "process-raw"))
    for candidate, each in trials.items():
        workload.chosen[candidate] = min(each, key=lambda split: statistics.median(each[split]))
    return make_measurements(workload, {each: {0: make_sample()} for each in (PLAIN, AHEAD, PROCESSES)}, trials=trials)


def test_the_report_says_which_split_each_has_and_what_the_others_gave(tmp_path: Path) -> None:
    made = measured(
        tmp_path,
        {
            AHEAD: {HALVES: [0.15, 0.16, 0.17], SHARED: [0.11, 0.10, 0.12]},
            PROCESSES: {HALVES: [0.15, 0.15, 0.15], SHARED: [0.2, 0.21, 0.22]},
        },
    )
    assert make_notes(made) == [
        "async-raw runs with 2 + 2 compute threads + loading threads, which share the CPUs (2): the fastest split in "
        "short trials, with 2.20 s per epoch; others: 1 + 1 3.20 s.",
        "process-raw runs with 1 + 1 compute threads + worker processes: the fastest split in short trials, with "
        "3.00 s per epoch; others: 2 + 2 4.20 s.",
    ]
    halves, shared = splits_of(made, AHEAD)
    assert (halves.compute_threads, halves.loading_threads, halves.trials) == (1, 1, 3)
    assert (shared.compute_threads, shared.loading_threads) == (2, 2)
    assert halves.epoch_seconds == pytest.approx(20 * 0.16)
    assert splits_of(made, PLAIN) == []


@pytest.mark.parametrize(
    ("torch_threads", "note"),
    [
        (1, "runs with 1 compute thread: the fastest number in short trials, with 2.00 s per epoch; others: 2 3.00 s."),
        (7, "set the compute threads to 7; it was given 1."),
    ],
)
def test_the_report_says_how_many_threads_compute_beside_a_loader_of_the_user(
    torch_threads: int, note: str, tmp_path: Path
) -> None:
    workload = make_workload(tmp_path, strategies=("mine=my_loaders:load",))
    workload.tried[MINE], workload.chosen[MINE] = TRIED, CpuSplit(1, 0)
    made = make_measurements(
        workload,
        {MINE: {0: make_sample(torch_threads=torch_threads)}},
        trials={MINE: {CpuSplit(2, 0): [0.15], CpuSplit(1, 0): [0.1]}},
        checks={MINE: CheckedEpoch(EpochContent([], [], [], [], ""), None, None, None, 0, 0, "", 0)},
    )
    assert make_notes(made) == [f"mine {note}"]


LOADERS = """
import etl

def load(source, pipeline, batch_size, seed):
    return etl.RawIterator(source, pipeline, batch_size, shuffle=True, seed=seed, dtype="float32")
"""


@pytest.mark.slow
@pytest.mark.skipif(available_cpus() < 2, reason="one CPU is not split")
def test_a_comparison_measures_what_trials_chose_for_each_strategy_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digits(tmp_path / "digits", samples=100)
    (tmp_path / "my_loaders.py").write_text(LOADERS)
    monkeypatch.chdir(tmp_path)
    asked: list[tuple[str, CpuSplit]] = []

    def tune(self: MeasuringProcesses, candidate: Candidate, batches: int) -> TuningSample:
        split = self._workload.threads(candidate)
        asked.append((candidate.strategy, split))
        if candidate == PROCESSES:
            raise MeasurementError("no memory")
        is_fast = (split == SHARED) == (candidate == AHEAD)
        return TuningSample(0.1, 0.1 if is_fast else 0.2, 0)

    def timeline(_: MeasuringProcesses, candidate: Candidate) -> Spans:
        raise InputError(f"{candidate.strategy}: too many open files")

    monkeypatch.setattr(MeasuringProcesses, "tune", tune)
    monkeypatch.setattr(MeasuringProcesses, "timeline", timeline)
    file, page = tmp_path / "report.json", tmp_path / "report.html"
    strategies = "raw,async-raw,process-raw,async-presaved,mine=my_loaders:load"
    arguments = ["-v", "--strategies", strategies, "--cpus", "2", "--rounds", "1"]
    arguments += ["--budget", "6s", "--records", "40", "--batch-size", "8", "--json", str(file), "--html", str(page)]
    assert main(["compare", str(tmp_path / "digits"), *arguments]) == 0
    report = json.loads(file.read_text())
    # One that is clearly slower loses after one pilot.
    assert {asked.pop() for _ in range(2)} == {(MINE.strategy, CpuSplit(each, 0)) for each in (1, 2)}
    assert asked == [
        *(("async-raw", each) for each in (HALVES, SHARED)),
        ("process-raw", HALVES),
        *(("async-presaved", each) for each in (HALVES, SHARED)),
    ]
    threads = {each["name"]: (each["compute_threads"], each["loading_threads"]) for each in report["strategies"]}
    assert threads.pop("raw") == threads.pop("mine")  # that takes equally long with either number
    assert threads == {"async-raw": (2, 2), "process-raw": (1, 1), "async-presaved": (1, 1)}
    taken = {
        each["name"]: [(split["compute_threads"], split["is_taken"]) for split in each["splits"]]
        for each in report["strategies"]
    }
    tried = {"async-raw": [(1, False), (2, True)], "async-presaved": [(1, True), (2, False)]}
    assert sorted(is_taken for _, is_taken in taken.pop("mine")) == [False, True]
    assert taken == {"raw": [], "process-raw": [], **tried}
    # What was forced in trials is in no sample: the rounds measured with these threads, as read back.
    requested = {
        each["name"]: next(audit["requested"] for audit in each["runtime"] if audit["setting"] == "threads")
        for each in report["strategies"]
    }
    assert (requested["async-raw"], requested["async-presaved"]) == ("2", "1")
    for output in (" ".join(capsys.readouterr().out.split()), page.read_text()):
        assert "async-raw runs with 2 + 2 compute threads + loading threads, which share the CPUs (2)" in output
        assert "mine runs with " in output
        assert "process-raw failed: other splits of its CPUs could not be tried: no memory" in output
        assert "async-raw failed: its timeline could not be recorded: async-raw: too many open files" in output
