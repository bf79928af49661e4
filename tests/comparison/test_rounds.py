"""Rounds: which candidates each round measures, when rounds end, and what an interruption leaves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from etl.comparison import rounds as rounds_module
from etl.comparison.candidates import Candidate
from etl.comparison.rounds import MIN_ROUNDS_SHOWN, ComparisonRounds, ratio_widths
from etl.comparison.samples import LoadingSample, Sample
from etl.measuring.clock import Split
from etl.measuring.processes import MeasurementError
from etl.measuring.statistics import MIN_ROUNDS
from tests.comparison_workloads import make_sample

RAW, AHEAD, SAVED = Candidate("raw"), Candidate("async-raw"), Candidate("presaved", "npy", "resize")
BOTH = Candidate("async-presaved", "npy", "resize")
CANDIDATES = [RAW, AHEAD, SAVED, BOTH]
LOADING_ONLY = [Candidate("async-presaved", "npy", stage) for stage in ("read", "decode")]
LATER = 1e9
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

    def measure(self, candidate: Candidate, with_etl_alone: bool) -> Sample:
        self._ask(candidate, with_etl_alone)
        wall = float(np.exp(self._random.normal(0, SPREADS.get(candidate, 0.1))))
        return make_sample(wall=Split(wall / 2, wall / 2), speed_probe=len(self.asked))

    def load(self, candidate: Candidate) -> LoadingSample:
        self._ask(candidate, True)
        return LoadingSample(Split(0.1, 0.4), len(self.asked))

    def _ask(self, candidate: Candidate, with_etl_alone: bool) -> None:
        if len(self.asked) == self._stop:
            raise KeyboardInterrupt
        self.asked.append((candidate, with_etl_alone))


def make(machine: Machine, candidates: Sequence[Candidate] = CANDIDATES, **more: Any) -> ComparisonRounds:
    settings: dict[str, Any] = {
        "rounds": None,
        "etl_alone_rounds": 3,
        "deadline": time.monotonic() + LATER,
        "seed": 0,
        "progress": lambda done: None,
        **more,
    }
    processes: Any = machine
    return ComparisonRounds(candidates, LOADING_ONLY, processes, **{"hard_deadline": settings["deadline"], **settings})


def rounds_of(made: ComparisonRounds, candidate: Candidate) -> list[int]:
    return sorted({**made.samples, **made.loads}[candidate])


def in_round(made: ComparisonRounds, number: int) -> set[Candidate]:
    return {each for each, samples in {**made.samples, **made.loads}.items() if number in samples}


def test_a_fixed_number_of_rounds_measures_every_candidate_in_each() -> None:
    made = make(Machine(), rounds=9, deadline=0.0)
    made.run()
    assert made.done == 9
    assert made.stopped_early is False
    for candidate in CANDIDATES:
        assert rounds_of(made, candidate) == list(range(9))


def test_loading_only_candidates_are_measured_in_the_first_rounds_only() -> None:
    made = make(Machine(), rounds=9)
    made.run()
    for extra in LOADING_ONLY:
        assert rounds_of(made, extra) == list(range(MIN_ROUNDS_SHOWN))


def test_an_extra_that_is_a_candidate_is_measured_once_a_round() -> None:
    machine = Machine()
    make(machine, [RAW, *LOADING_ONLY], rounds=2).run()
    assert len(machine.asked) == 2 * 3


def test_loading_alone_is_measured_in_the_first_rounds_of_each() -> None:
    machine = Machine()
    make(machine, rounds=6, etl_alone_rounds=2).run()
    for candidate in CANDIDATES:
        asked = [alone for each, alone in machine.asked if each == candidate]
        assert asked == [number < 2 for number in range(6)]


def test_each_round_has_an_order_of_its_own_that_the_seed_decides() -> None:
    orders = []
    for seed in (0, 0, 1):
        machine = Machine()
        make(machine, rounds=8, seed=seed).run()
        orders.append([candidate for candidate, _ in machine.asked if candidate in CANDIDATES])
    rounds = {tuple(orders[0][first : first + 4]) for first in range(0, 32, 4)}
    assert len(rounds) > 3
    assert orders[0] == orders[1] != orders[2]


def test_after_enough_for_an_interval_the_reference_and_the_widest_half_are_measured() -> None:
    stop = MIN_ROUNDS * len(CANDIDATES) + MIN_ROUNDS_SHOWN * len(LOADING_ONLY) + 3 * 3
    made = make(Machine(stop))
    made.run()
    for number in range(MIN_ROUNDS):
        assert set(CANDIDATES) <= in_round(made, number)
    for number in range(MIN_ROUNDS, MIN_ROUNDS + 3):
        assert in_round(made, number) == {RAW, AHEAD, BOTH}
    widths = ratio_widths(made.samples, RAW, CANDIDATES[1:])
    assert widths[SAVED] < min(widths[AHEAD], widths[BOTH])


def test_one_candidate_alone_goes_on_being_measured() -> None:
    made = make(Machine(stop=20), [RAW])
    made.run()
    assert made.done == 20 - MIN_ROUNDS_SHOWN * len(LOADING_ONLY)


def test_after_the_deadline_only_the_minimum_of_rounds_is_taken() -> None:
    made = make(Machine(), deadline=time.monotonic() - 1)
    made.run()
    assert made.done == MIN_ROUNDS_SHOWN
    assert made.stopped_early is False


def test_no_round_is_begun_that_would_end_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(rounds_module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    class Timed(Machine):
        def renew(self) -> None:
            clock.now += 0.5

        def _ask(self, candidate: Candidate, with_etl_alone: bool) -> None:
            clock.now += 1.0
            super()._ask(candidate, with_etl_alone)

    # Three rounds of 4 candidates and 2 with loading only take 18 s, three of the candidates 12, and then each three.
    # A server starts in half a second.
    made = make(Timed(), deadline=41.5)
    made.run()
    assert made.done == MIN_ROUNDS + 2
    assert clock.now == 18 + 12 + 6 + 8 * 0.5


def test_rounds_go_on_beyond_the_deadline_until_there_are_enough_for_an_interval() -> None:
    made = make(Machine(), deadline=time.monotonic() - 1, hard_deadline=time.monotonic() + LATER)
    made.run()
    assert made.done == MIN_ROUNDS


@pytest.mark.parametrize("into", range(1, 4))
def test_an_interruption_within_a_round_drops_that_round_and_only_that(into: int) -> None:
    whole = 2 * (len(CANDIDATES) + len(LOADING_ONLY))
    made, undisturbed = make(Machine(whole + into)), make(Machine(), rounds=2)
    made.run()
    undisturbed.run()
    assert made.done == 2
    assert made.stopped_early is True
    assert made.samples == undisturbed.samples
    assert made.loads == undisturbed.loads


@pytest.mark.parametrize("measured", [0, 3])
def test_an_interruption_before_a_whole_round_is_raised(measured: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(Machine(measured)).run()


class Failing(Machine):
    """A machine that fails to measure `candidate` for the second time."""

    def __init__(self, candidate: Candidate, error: Exception, stop: int | None = None) -> None:
        super().__init__(stop)
        self._failing = candidate
        self._error = error

    def _ask(self, candidate: Candidate, with_etl_alone: bool) -> None:
        if candidate == self._failing and self.servers == 2:
            raise self._error
        super()._ask(candidate, with_etl_alone)


def test_an_error_while_measuring_is_not_taken_for_an_end() -> None:
    with pytest.raises(RuntimeError, match="no figure"):
        make(Failing(SAVED, RuntimeError("no figure")), rounds=3).run()


def test_a_candidate_that_fails_is_left_out_with_its_samples() -> None:
    made = make(Failing(SAVED, MeasurementError("it was killed")), rounds=3)
    made.run()
    assert made.failed == {SAVED: "it was killed, in round 2"}
    assert sorted(made.samples, key=CANDIDATES.index) == [RAW, AHEAD, BOTH]


class Starving(Machine):
    """A machine without memory for a server in round `number`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._starved = number

    def renew(self) -> None:
        if self.servers == self._starved:
            raise MeasurementError("the process of the comparison was killed by signal 9")
        super().renew()


def test_a_round_that_cannot_begin_leaves_what_was_measured() -> None:
    made = make(Starving(4), rounds=9)
    made.run()
    assert (made.done, made.stopped_early) == (4, True)
    assert "killed by signal 9" in made.no_server
    assert all(rounds_of(made, each) == [0, 1, 2, 3] for each in CANDIDATES)


def test_a_first_round_that_cannot_begin_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="killed by signal 9"):
        make(Starving(0), rounds=9).run()


def test_if_the_reference_fails_the_next_one_is_the_reference_and_measured_in_every_round() -> None:
    in_rounds = MIN_ROUNDS * 3 + 1 + MIN_ROUNDS_SHOWN * len(LOADING_ONLY) + 3 * 2
    made = make(Failing(RAW, MeasurementError("it was killed"), stop=in_rounds), [RAW, SAVED, AHEAD, BOTH])
    made.run()
    assert made.failed == {RAW: "it was killed, in round 2"}
    assert list(made.samples) == [SAVED, AHEAD, BOTH]
    assert made.done == MIN_ROUNDS + 3
    for number in range(MIN_ROUNDS, MIN_ROUNDS + 3):
        assert in_round(made, number) in ({SAVED, AHEAD}, {SAVED, BOTH})  # the reference and half of the others


def test_if_all_fail_the_error_of_the_last_is_raised() -> None:
    class Broken(Machine):
        def measure(self, candidate: Candidate, with_etl_alone: bool) -> Sample:
            self._ask(candidate, with_etl_alone)
            raise MeasurementError(f"{candidate.strategy} was killed")

    machine = Broken()
    with pytest.raises(MeasurementError, match="was killed") as raised:
        make(machine, rounds=3).run()
    last = [candidate for candidate, _ in machine.asked if candidate in CANDIDATES][-1]
    assert str(raised.value) == f"{last.strategy} was killed"
    assert machine.servers == 1


def test_every_round_has_a_server_of_its_own() -> None:
    machine = Machine()
    make(machine, rounds=5).run()
    assert machine.servers == 5


def test_progress_tells_the_rounds_that_are_done() -> None:
    told: list[int] = []
    make(Machine(), [RAW, AHEAD], rounds=4, progress=told.append).run()
    assert told == [number for number in range(4) for _ in range(4 if number < 3 else 2)]
