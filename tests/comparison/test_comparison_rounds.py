"""Rounds: which candidates each round measures, when rounds end, and what an interruption leaves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from etl.comparison.request.answers import AuditedSample, LoadingSample
from etl.comparison.request.candidates import Candidate
from etl.comparison.run import comparison_rounds
from etl.comparison.run.comparison_rounds import ComparisonRounds
from etl.comparison.run.measuring_processes import InputError
from etl.measuring.clock import Split
from etl.measuring.processes import MeasurementError
from etl.measuring.sample import Recipe
from tests.comparison_workloads import make_sample

RAW, AHEAD, SAVED = Candidate("raw"), Candidate("async-raw"), Candidate("presaved", "npy", "resize")
BOTH = Candidate("async-presaved", "npy", "resize")
CANDIDATES = [RAW, AHEAD, SAVED, BOTH]
LOADING_ONLY = [Candidate("async-presaved", "npy", stage) for stage in ("read", "decode")]
ETL_ALONE_ROUNDS = 3
DEFAULTS: dict[str, Any] = {
    "etl_alone_rounds": ETL_ALONE_ROUNDS,
    "seed": 0,
    "name": str,
    "progress": lambda done: None,
}
# How widely the wall times of each are spread.
SPREADS = {RAW: 0.0, AHEAD: 0.5, SAVED: 0.01, BOTH: 0.3}


class Machine:
    """A stand-in for `Processes` that lists its measurements, and is interrupted at measurement `stop`."""

    def __init__(self, stop: int | None = None) -> None:
        self._random = np.random.default_rng(0)
        self._stop = stop
        self.asked: list[tuple[Candidate, bool]] = []
        self.servers = 0

    def renew(self) -> None:
        self.servers += 1

    def measure(self, candidate: Candidate, recipe: Recipe) -> AuditedSample:
        self._ask(candidate, recipe.etl_alone)
        wall = float(np.exp(self._random.normal(0, SPREADS.get(candidate, 0.1))))
        part = Split(wall / 4, wall / 4)
        return make_sample(wall=Split(wall / 2, wall / 2), compute=part, stall=part, cpu_seconds=len(self.asked))

    def load(self, candidate: Candidate) -> LoadingSample:
        self._ask(candidate, True)
        return LoadingSample(Split(10.0, 40.0), len(self.asked))

    def _ask(self, candidate: Candidate, with_etl_alone: bool) -> None:
        if len(self.asked) == self._stop:
            raise KeyboardInterrupt
        self.asked.append((candidate, with_etl_alone))


class Made(ComparisonRounds):
    """Rounds of a machine."""

    def __init__(self, machine: Machine, candidates: Sequence[Candidate], **settings: Any) -> None:
        processes: Any = machine
        super().__init__({each: Recipe() for each in candidates}, LOADING_ONLY, processes, **settings)

    def take(self, rounds: int) -> None:
        """Take so many rounds."""
        self.run(lambda _: rounds)


def make(machine: Machine, candidates: Sequence[Candidate] = CANDIDATES, **more: Any) -> Made:
    return Made(machine, candidates, **DEFAULTS | more)


def rounds_of(made: ComparisonRounds, candidate: Candidate) -> list[int]:
    return sorted({**made.samples, **made.loads}[candidate])


def test_each_round_has_a_server_and_measures_every_candidate_in_its_place() -> None:
    machine = Machine()
    made = make(machine)
    made.take(9)
    assert (made.done, made.stopped_early, made.seed, machine.servers) == (9, False, 0, 9)
    for candidate in CANDIDATES:
        assert rounds_of(made, candidate) == list(range(9))
        # The second round has the reverse order.
        assert made.places[candidate][0].position + made.places[candidate][1].position == 5
    for extra in LOADING_ONLY:  # in the first rounds only
        assert rounds_of(made, extra) == list(range(ETL_ALONE_ROUNDS))
    assert sorted(made.places[each][0].position for each in made.places) == list(range(6))


def test_an_extra_that_is_a_candidate_is_measured_once_a_round() -> None:
    machine = Machine()
    make(machine, [RAW, *LOADING_ONLY]).take(2)
    assert len(machine.asked) == 2 * 3


def test_loading_alone_is_measured_in_the_first_rounds_of_each() -> None:
    machine = Machine()
    make(machine, etl_alone_rounds=2).take(6)
    for candidate in CANDIDATES:
        asked = [alone for each, alone in machine.asked if each == candidate]
        assert asked == [number < 2 for number in range(6)]


@pytest.mark.parametrize("into", range(1, 4))
def test_an_interruption_within_a_round_drops_that_round_and_only_that(into: int) -> None:
    whole = 2 * (len(CANDIDATES) + len(LOADING_ONLY))
    made, undisturbed = make(Machine(whole + into)), make(Machine())
    made.take(3)
    undisturbed.take(2)
    assert made.done == 2
    assert made.stopped_early is True
    assert made.samples == undisturbed.samples
    assert made.loads == undisturbed.loads


@pytest.mark.parametrize("measured", [0, 3])
def test_an_interruption_before_a_whole_round_is_raised(measured: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(Machine(measured)).take(3)


class Failing(Machine):
    """A machine that fails to measure `candidate` for the second time."""

    def __init__(self, candidate: Candidate, error: Exception) -> None:
        super().__init__()
        self._failing = candidate
        self._error = error

    def _ask(self, candidate: Candidate, with_etl_alone: bool) -> None:
        if candidate == self._failing and self.servers == 2:
            raise self._error
        super()._ask(candidate, with_etl_alone)


class Disturbed(Machine):
    """A machine on which other processes take half of the CPUs during the measurements in `disturbed`."""

    def __init__(self, disturbed: Collection[int]) -> None:
        super().__init__()
        self._disturbed = disturbed

    def measure(self, candidate: Candidate, recipe: Recipe) -> AuditedSample:
        share = 0.5 if len(self.asked) in self._disturbed else 0.0
        return replace(super().measure(candidate, recipe), other_processes=share)


def test_a_disturbed_sample_is_taken_again_and_does_not_count() -> None:
    machine = Disturbed({7})  # the second sample of the second round
    made = make(machine, [*CANDIDATES, Candidate("process-raw")], etl_alone_rounds=0)
    made.take(3)
    assert len(machine.asked) == 3 * 5 + 1
    assert all(each.other_processes == 0 for taken in made.samples.values() for each in taken.values())
    (reason,) = made.gate.retaken
    assert reason.endswith(": other processes used 50% of the CPUs")
    assert made.gate.disturbed == []


def test_at_most_a_fifth_of_the_samples_is_taken_again_and_the_others_count_as_disturbed() -> None:
    machine = Disturbed(range(10_000))
    made = make(machine)
    made.take(10)
    assert len(made.gate.retaken) == 10 * len(CANDIDATES) // 5
    assert len(made.gate.disturbed) == 10 * len(CANDIDATES)
    assert {len(each) for each in made.samples.values()} == {10}


def test_an_error_while_measuring_is_not_taken_for_an_end() -> None:
    with pytest.raises(RuntimeError, match="no figure"):
        make(Failing(SAVED, RuntimeError("no figure"))).take(3)


@pytest.mark.parametrize("failing", [RAW, SAVED], ids=["reference", "other"])
def test_a_candidate_that_fails_is_left_out_with_its_samples(failing: Candidate) -> None:
    made = make(Failing(failing, MeasurementError("it was killed")))
    made.take(6)
    assert made.failed == {failing: "it was killed, in round 2"}
    assert list(made.samples) == [each for each in CANDIDATES if each != failing]
    assert made.done == 6


class Starving(Machine):
    """A machine on which round `number` cannot begin."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__()
        self._starved = number
        self._error = error

    def renew(self) -> None:
        if self.servers == self._starved:
            raise self._error
        super().renew()


KILLED, DAMAGED = MeasurementError("the process was killed by signal 9"), InputError("record 7 is damaged")


@pytest.mark.parametrize(
    ("machine", "done", "reason"),
    [
        (Starving(4, KILLED), 4, str(KILLED)),
        (Starving(4, DAMAGED), 4, str(DAMAGED)),
        (Failing(SAVED, DAMAGED), 1, str(DAMAGED)),
    ],
    ids=["no server", "wrong input at its begin", "wrong input"],
)
def test_a_round_that_fails_leaves_what_was_measured(machine: Machine, done: int, reason: str) -> None:
    made = make(machine)
    made.take(9)
    assert (made.done, made.stopped_early, made.end_reason) == (done, True, reason)
    assert all(rounds_of(made, each) == list(range(done)) for each in CANDIDATES)


@pytest.mark.parametrize("error", [KILLED, DAMAGED], ids=str)
def test_a_first_round_that_cannot_begin_is_an_error(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        make(Starving(0, error)).take(9)


def test_the_time_of_a_candidate_that_fails_does_not_count_as_that_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    class Hanging(Machine):
        def measure(self, candidate: Candidate, recipe: Recipe) -> AuditedSample:
            nonlocal now
            now += 60.0 if candidate == SAVED else 1.0
            if candidate == SAVED:
                raise MeasurementError("its process gave no answer for 60 s")
            return super().measure(candidate, recipe)

    monkeypatch.setattr(comparison_rounds, "time", SimpleNamespace(monotonic=lambda: now))
    told: list[float] = []
    made = make(Hanging(), etl_alone_rounds=0)
    made.run(lambda seconds: told.append(seconds) or 2)  # type: ignore[func-returns-value]
    [seconds] = told
    assert 0.0 < seconds <= 3.0
    assert made.lost == 60.0


def test_the_number_of_rounds_is_chosen_from_the_first_without_loading_alone() -> None:
    told: list[float] = []
    made = make(Machine())
    made.run(lambda seconds: told.append(seconds) or 2)  # type: ignore[func-returns-value]
    assert made.done == 2
    [seconds] = told
    assert seconds < -50.0  # the machine takes no time, and tells of loading alone, of two stores for 50 s each


def test_if_all_fail_the_error_of_the_last_is_raised() -> None:
    class Broken(Machine):
        def measure(self, candidate: Candidate, recipe: Recipe) -> AuditedSample:
            self._ask(candidate, recipe.etl_alone)
            raise MeasurementError(f"{candidate.strategy} was killed")

    machine = Broken()
    with pytest.raises(MeasurementError, match="was killed") as raised:
        make(machine).take(3)
    last = [candidate for candidate, _ in machine.asked if candidate in CANDIDATES][-1]
    assert str(raised.value) == f"{last.strategy} was killed"
    assert machine.servers == 1


def test_progress_tells_the_rounds_that_are_done() -> None:
    told: list[int] = []
    make(Machine(), [RAW, AHEAD], progress=told.append).take(4)
    assert told == [number for number in range(4) for _ in range(4 if number < ETL_ALONE_ROUNDS else 2)]
