"""CPU splits: each strategy that loads ahead tries them in the real loop, in bounded time."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etl.commands import main
from etl.comparison import builtin
from etl.comparison.candidates import Candidate, StoreKind, Threads
from etl.comparison.phases import TRIALS_SHARE
from etl.comparison.processes import Processes
from etl.comparison.profile import profile_raw_pipeline
from etl.comparison.recommendation import make_notes
from etl.comparison.results import Measurements, splits_of
from etl.comparison.settings import Settings
from etl.comparison.subset import Subset
from etl.comparison.trials import (
    MAX_TRIALS,
    MIN_TRIAL_BATCHES,
    MIN_TRIALS,
    choose_split,
    seconds_per_batch,
    take_trials,
)
from etl.comparison.tuning.space import space_of
from etl.comparison.workload import Workload
from etl.demonstration import digits
from etl.measuring.clock import EpochTimes
from etl.measuring.processes import MeasurementError
from etl.runtime.resources import affinity_of, available_cpus
from tests.comparison_workloads import make_profile, make_sample, make_workload
from tests.user_modules import user_module

AHEAD, PLAIN, PROCESSES = Candidate("async-raw"), Candidate("raw"), Candidate("process-raw")
STORED = Candidate("async-presaved", "npy", "read")
HALVES, SHARED = Threads(1, 1), Threads(2, 2)


class Clock:
    """A clock for trials in which batches take `seconds`, with noise or without."""

    def __init__(self, seconds: dict[Threads, float], noise: float = 0.0) -> None:
        self.now = 0.0
        self.runs: list[tuple[Threads, int]] = []
        self._seconds = seconds
        self._noise = noise
        self._random = random.Random(3)

    def __call__(self) -> float:
        return self.now

    def run(self, split: Threads, batches: int) -> float:
        self.runs.append((split, batches))
        took = self._seconds[split]
        if self._random.random() < self._noise:
            took *= 10
        self.now += took * batches
        return took

    def trials(self, deadline: float, max_batches: int = 60) -> dict[Threads, list[float]]:
        return take_trials(list(self._seconds), self.run, max_batches=max_batches, deadline=deadline, seed=0, now=self)


@pytest.mark.parametrize(
    ("cpus", "splits"),
    [
        (1, [Threads(1, 1)]),
        (2, [Threads(1, 1), Threads(2, 2)]),
        (3, [Threads(2, 1), Threads(1, 2), Threads(3, 3)]),
        (4, [Threads(2, 2), Threads(3, 1), Threads(1, 3), Threads(4, 4)]),
        (8, [Threads(4, 4), Threads(7, 1), Threads(1, 7), Threads(8, 8)]),
    ],
)
def test_splits_are_half_and_half_all_but_one_for_either_and_all_for_both(
    tmp_path: Path, cpus: int, splits: list[Threads]
) -> None:
    workload = make_workload(tmp_path, cpus=cpus)
    for candidate in (AHEAD, PROCESSES, Candidate("async-presaved", "npy", "read")):
        assert workload.splits(candidate, False) == splits
    assert workload.splits(PLAIN, False) == [Threads(cpus, 0)]


def test_beside_a_device_all_but_one_load_unless_trials_say_otherwise_and_a_wait_takes_no_cpu(tmp_path: Path) -> None:
    assert make_workload(tmp_path, cpus=4).splits(AHEAD, True)[0] == Threads(1, 3)
    waits = make_workload(tmp_path, cpus=4, compute="simulated:5ms")
    assert waits.splits(AHEAD, False) == [Threads(1, 4), Threads(1, 2), Threads(1, 1), Threads(1, 3)]
    assert len(make_workload(tmp_path, cpus=4, prefetch_size=0).splits(AHEAD, False)) == 1


def test_each_strategy_has_the_split_that_was_chosen_for_it_and_its_other_cuts_too(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    saved = Candidate("async-presaved", "npy", "read")
    workload.chosen = {AHEAD: SHARED}
    assert workload.threads(AHEAD, False) == SHARED
    assert workload.threads(PROCESSES, False) == HALVES
    assert workload.threads(saved, False) == HALVES
    workload.chosen = {saved: SHARED}
    assert workload.threads(replace(saved, stage="decode"), False) == SHARED
    assert workload.threads(AHEAD, False) == HALVES


def test_all_splits_are_tried_in_turns_and_as_often() -> None:
    clock = Clock({HALVES: 0.01, SHARED: 0.02, Threads(2, 1): 0.03})
    trials = clock.trials(deadline=100.0)
    assert [len(each) for each in trials.values()] == [MAX_TRIALS] * 3
    turns = [[split for split, _ in clock.runs[turn : turn + 3]] for turn in range(0, 3 * MAX_TRIALS, 3)]
    assert all(set(turn) == set(trials) for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1


@pytest.mark.parametrize("batch_seconds", [1e-4, 1e-2, 0.1, 1.0])
@pytest.mark.parametrize("deadline", [0.0, 2.0, 10.0])
def test_trials_end_by_their_deadline_after_one_turn_at_least(batch_seconds: float, deadline: float) -> None:
    clock = Clock({HALVES: batch_seconds, SHARED: 1.5 * batch_seconds})
    trials = clock.trials(deadline)
    first_turn = 2.5 * batch_seconds * MIN_TRIAL_BATCHES
    assert clock.now <= max(deadline, first_turn) + 1e-9
    assert min(map(len, trials.values())) >= 1
    assert all(MIN_TRIAL_BATCHES <= batches <= 60 for _, batches in clock.runs)
    if 2 * MIN_TRIALS * first_turn < deadline:
        assert choose_split(trials) == HALVES


def test_a_short_epoch_is_tried_completely() -> None:
    clock = Clock({HALVES: 0.1, SHARED: 0.2})
    clock.trials(deadline=100.0, max_batches=3)
    assert {batches for _, batches in clock.runs} == {3}


def test_a_minority_of_disturbed_trials_does_not_choose() -> None:
    chosen = [choose_split({SHARED: [0.1, 0.1, 0.9, 0.1, 0.9], HALVES: [0.2, 0.2, 0.2, 0.2, 0.2]})]
    chosen.append(choose_split({SHARED: [0.1, 0.1, 0.1], HALVES: [0.2, 0.01, 0.2]}))
    assert chosen == [SHARED, SHARED]


def test_too_few_trials_choose_nothing() -> None:
    assert choose_split({HALVES: [1.0] * MIN_TRIALS, SHARED: [0.1] * (MIN_TRIALS - 1)}) is None


@pytest.mark.parametrize(
    ("batches", "prefetch_size", "seconds"),
    [(1, 2, 9.0), (2, 2, 5.0), (3, 2, 4.0), (4, 2, 2.5), (10, 2, 8 / 7), (10, 0, 16 / 9)],
)
def test_a_batch_is_timed_when_loading_has_got_ahead(batches: int, prefetch_size: int, seconds: float) -> None:
    # The first takes 9 s, the next ones 5, 3, 2 and then 1 each.
    done = np.cumsum([9.0, 5.0, 3.0, 2.0, *[1.0] * 6][:batches])
    times = EpochTimes(0.0, done, done, done, done, *[float(done[-1])] * 3, batches)
    assert seconds_per_batch(times, prefetch_size) == pytest.approx(seconds)


class Slow:
    """Records that take `seconds` to load each: with several threads at once each in its own time, or, if `crowded`,
    each so much longer that all together are slower than one alone.
    """

    def __init__(self, seconds: float, crowded: bool) -> None:
        self._seconds = seconds
        self._crowded = crowded
        self._loading = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, Any]:
        with self._lock:
            self._loading += 1
            others = self._loading - 1
        time.sleep(self._seconds * (1 + (8 * others if self._crowded else 0)))
        with self._lock:
            self._loading -= 1
        return {"features": np.full(4, index, np.float32), "label": index % 3}


@pytest.mark.parametrize(("crowded", "fastest"), [(False, Threads(1, 2)), (True, Threads(1, 1))])
def test_real_trials_choose_two_loading_threads_if_they_load_faster_than_one_and_only_then(
    tmp_path: Path, crowded: bool, fastest: Threads
) -> None:
    workload = make_workload(tmp_path, compute="simulated:1ms", batch_size=8)
    workload.source = Slow(2e-3, crowded)
    workload.records = Subset(workload.source, 96, 0)
    found = builtin.try_splits(workload, AHEAD, seconds=8.0)
    trials = {each.threads: each.seconds_per_batch for each in found.trials}
    assert set(trials) == {Threads(1, 2), Threads(1, 1)}
    assert choose_split(trials) == fastest


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
        loading = [{split.loading for split in workload.splits(each, False)} for each in (AHEAD, PROCESSES, STORED)]
        assert loading == [{1}, {1, 2, 3, 4}, {1, 2, 3, 4}]
        with workload.iterator(AHEAD, workload.splits(AHEAD, False)[0]) as iterator:
            assert iterator.threads == 1  # type: ignore[attr-defined]
        profile = profile_raw_pipeline(workload)
        [split, *_] = space_of(workload, AHEAD, profile, same_pixels=True).dimensions
        assert {"compute_threads": 1, "loading_threads": 4} in split.choices()  # for processes
        assert all(profile.split(Threads(1, each)) is not None for each in loading[1])


def test_the_loop_of_a_trial_trains_with_the_threads_of_its_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    workload = make_workload(tmp_path, model="mlp")
    seen: set[tuple[int, int]] = set()

    def look(iterator: Any, compute: Any) -> EpochTimes:
        seen.add((torch.get_num_threads(), iterator._epochs.loader.threads))
        return run_epoch(iterator, compute)

    run_epoch = builtin.run_epoch
    monkeypatch.setattr(builtin, "run_epoch", look)
    builtin.try_splits(workload, AHEAD, seconds=0.0)
    assert seen == {(1, 1), (2, 2)}


def measured(folder: Path, trials: dict[Candidate, dict[Threads, list[float]]]) -> Measurements:
    """Return measurements with trials of splits, for 200 records in batches of 10."""
    workload = make_workload(folder, strategies=("raw", "async-raw", "process-raw"))
    for candidate, each in trials.items():
        fastest = choose_split(each)
        if fastest is not None:
            workload.chosen[candidate] = fastest
    return Measurements(
        workload=workload,
        started_at="2025-11-21T17:16:04+00:00",
        seconds=60.0,
        affinity=[0, 1],
        memory_nbytes=10**9,
        profile=make_profile(),
        predictions={},
        trials=trials,
        writing={},
        prepared={},
        checks={},
        failed={},
        samples={each: {0: make_sample()} for each in (PLAIN, AHEAD, PROCESSES)},
        loads={},
        randomness=None,
        rounds=1,
        stopped_early=False,
        no_server="",
        timelines=[],
    )


@pytest.mark.slow
def test_the_report_says_which_split_each_has_and_what_the_others_gave(tmp_path: Path) -> None:
    made = measured(
        tmp_path,
        {
            AHEAD: {HALVES: [0.15, 0.16, 0.17], SHARED: [0.11, 0.10, 0.12]},
            PROCESSES: {HALVES: [0.15, 0.15, 0.15], SHARED: [0.2, 0.21, 0.22]},
        },
    )
    assert make_notes(made) == [
        "async-raw runs with 2 + 2 compute threads + loading threads, which share the CPUs (2): the fastest split in 3 "
        "short trials, with 2.20 s per epoch; others: 1 + 1 3.20 s.",
        "process-raw runs with 1 + 1 compute threads + worker processes: the fastest split in 3 short trials, with "
        "3.00 s per epoch; others: 2 + 2 4.20 s.",
    ]
    halves, shared = splits_of(made, AHEAD)
    assert (halves.compute_threads, halves.loading_threads, halves.trials) == (1, 1, 3)
    assert (shared.compute_threads, shared.loading_threads) == (2, 2)
    assert halves.epoch_seconds == pytest.approx(20 * 0.16)
    assert splits_of(made, PLAIN) == []


@pytest.mark.slow
def test_splits_without_time_for_trials_are_noted(tmp_path: Path) -> None:
    made = measured(tmp_path, {AHEAD: {HALVES: [0.2], SHARED: [0.1]}})
    (note,) = make_notes(made)
    assert note.startswith(
        "async-raw runs with 1 + 1 compute threads + loading threads; there was no time to try other"
    )
    assert note.endswith("allow more with --budget.")


@pytest.mark.slow
@pytest.mark.skipif(available_cpus() < 2, reason="one CPU is not split")
def test_a_comparison_measures_what_trials_chose_for_each_strategy_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digits(tmp_path / "digits", samples=100)
    asked: list[tuple[Candidate, float]] = []

    def try_splits(self: Processes, candidate: Candidate, seconds: float) -> dict[Threads, list[float]]:
        asked.append((candidate, seconds))
        if candidate == PROCESSES:
            raise MeasurementError("no memory")
        fast, slow = (SHARED, HALVES) if candidate == AHEAD else (HALVES, SHARED)
        return {HALVES: [0.5] * 3, SHARED: [0.5] * 3, fast: [0.1] * 3, slow: [0.2] * 3}

    monkeypatch.setattr(Processes, "try_splits", try_splits)
    file, page = tmp_path / "report.json", tmp_path / "report.html"
    arguments = ["--strategies", "raw,async-raw,process-raw,async-presaved", "--threads", "2", "--rounds", "1"]
    arguments += ["--budget", "6s", "--records", "40", "--batch-size", "8", "--json", str(file), "--html", str(page)]
    assert main(["compare", str(tmp_path / "digits"), *arguments]) == 0
    report = json.loads(file.read_text())
    saved = Candidate("async-presaved", "npy", "read")
    # All trials together have a share of the time.
    assert [candidate.strategy for candidate, _ in asked] == [AHEAD.strategy, PROCESSES.strategy, saved.strategy]
    assert sum(seconds for _, seconds in asked) == pytest.approx(6.0 * TRIALS_SHARE)
    threads = {each["name"]: (each["compute_threads"], each["loading_threads"]) for each in report["strategies"]}
    assert threads.pop("raw")[1] == 0
    assert threads == {"async-raw": (2, 2), "process-raw": (1, 1), "async-presaved": (1, 1)}
    taken = {
        each["name"]: [(split["compute_threads"], split["is_taken"]) for split in each["splits"]]
        for each in report["strategies"]
    }
    tried = {"async-raw": [(1, False), (2, True)], "async-presaved": [(1, True), (2, False)]}
    assert taken == {"raw": [], "process-raw": [], **tried}
    # What was forced in trials is in no sample: the rounds measured with these threads, as read back.
    requested = {
        each["name"]: next(audit["requested"] for audit in each["runtime"] if audit["setting"] == "threads")
        for each in report["strategies"]
    }
    assert (requested["async-raw"], requested["async-presaved"]) == ("2", "1")
    assert {split["compute_threads"] for split in report["profile"]["splits"]} == {1, 2}
    for output in (" ".join(capsys.readouterr().out.split()), page.read_text()):
        assert "async-raw runs with 2 + 2 compute threads + loading threads, which share the CPUs (2)" in output
        assert "process-raw failed: other splits of its CPUs could not be tried: no memory" in output


@pytest.mark.slow
@pytest.mark.skipif(available_cpus() < 2, reason="one CPU is not split")
def test_real_processes_try_every_split_of_those_that_load_ahead(tmp_path: Path) -> None:
    digits(tmp_path / "digits", samples=100)
    workload = Workload(Settings(str(tmp_path / "digits"), batch_size=8), tmp_path, 2)
    workload.write(StoreKind("npy", "read"), 1).close()
    with Processes(workload, affinity_of(2)) as processes:
        for candidate in (AHEAD, PROCESSES, Candidate("async-presaved", "npy", "read")):
            trials = processes.try_splits(candidate, 60.0)
            assert list(trials) == [HALVES, SHARED]
            assert [len(each) for each in trials.values()] == [MAX_TRIALS] * 2
            assert all(seconds > 0 for each in trials.values() for seconds in each)
