"""The search for the best configuration, with made-up times."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest

from etl.comparison.request.answers import TuningSample
from etl.comparison.request.candidates import Candidate
from etl.comparison.tuning.search import Arm, Search, choose
from etl.measuring.processes import MeasurementError
from etl.measuring.statistics import Interval


class Machine:
    """A machine on which the clock moves only while samples are taken."""

    def __init__(self, seconds_per_batch: Callable[[Arm], float], noise: float = 0.0) -> None:
        self.now = 0.0
        self.renewed = 0
        self.taken: list[tuple[Arm, int]] = []
        self._seconds = seconds_per_batch
        self._noise = random.Random(3)
        self._spread = noise

    def take(self, arm: Arm, batches: int) -> TuningSample:
        self.taken.append((arm, batches))
        seconds = self._seconds(arm) * (1 + self._noise.gauss(0, self._spread))
        self.now += 1.0 + batches * seconds
        return TuningSample(seconds, seconds, 10**6)

    def renew(self) -> None:
        self.renewed += 1
        self.now += 2.0

    def search(self, seconds: float, batches: tuple[int, int] = (4, 32)) -> Search:
        return Search(
            configuration(0),
            self.take,
            renew=self.renew,
            epoch_batches=100.0,
            batches=batches,
            deadline=seconds,
            seed=1,
            progress=lambda phase, done, total: None,
            now=lambda: self.now,
        )


@pytest.fixture(autouse=True)
def new_arms() -> None:
    configuration.cache_clear()


@cache
def configuration(number: int) -> Arm:
    return Arm(Candidate("raw"), {"compute_threads": number})


def number_of(arm: Arm) -> int:
    return int(arm.changes["compute_threads"])


def ratio(estimate: float, low: float | None = None, high: float | None = None) -> Interval:
    return Interval(estimate, low, high, 8)


def test_halving_finds_the_fastest_of_many_in_spite_of_noise() -> None:
    machine = Machine(lambda each: 0.1 + 0.02 * abs(number_of(each) - 17), noise=0.05)
    search = machine.search(300.0)
    count = search.measure_given()
    assert 12 <= count <= 32
    finalists = search.halve([configuration(number) for number in range(24)])
    assert configuration(17) in finalists
    assert len(finalists) <= 4


def test_the_longest_samples_are_spent_on_the_few_that_are_left() -> None:
    machine = Machine(lambda each: 0.1 + 0.02 * number_of(each))
    search = machine.search(1_000.0)
    search.measure_given()
    search.halve([configuration(number) for number in range(16)])
    counts = {batches: sum(taken == batches for _, taken in machine.taken) for batches in (4, 8, 16, 32)}
    assert counts[4] == 17
    assert counts[4] > counts[8] > counts[16] >= counts[32] > 0


def test_every_round_has_a_new_server() -> None:
    machine = Machine(lambda each: 0.1 + 0.02 * number_of(each))
    search = machine.search(200.0)
    search.measure_given()
    search.halve([configuration(number) for number in range(8)])
    assert machine.renewed == 0
    search.confirm([configuration(1)])
    assert machine.renewed > 6


def test_what_there_is_no_time_for_is_left_out() -> None:
    machine = Machine(lambda each: 1.0)
    search = machine.search(60.0)
    assert search.measure_given() == 4
    search.halve([configuration(number) for number in range(30)])
    assert 4 <= len({arm for arm, _ in machine.taken}) < 15
    assert machine.now < 60.0


def test_a_configuration_that_fails_is_left_out_and_named() -> None:
    def seconds(arm: Arm) -> float:
        if number_of(arm) == 2:
            raise MeasurementError("raw raised OSError: no space", reason="OSError: no space")
        return 0.1

    search = Machine(seconds).search(100.0)
    search.measure_given()
    finalists = search.halve([configuration(number) for number in range(5)])
    assert [configuration(number).failed for number in range(5)] == ["", "", "OSError: no space", "", ""]
    assert configuration(2) not in finalists


def test_a_given_configuration_that_fails_ends_the_search() -> None:
    def fail(arm: Arm) -> float:
        raise MeasurementError("raw raised OSError: no space", reason="OSError: no space")

    with pytest.raises(MeasurementError, match="no space"):
        Machine(fail).search(100.0).measure_given()


def test_neighbours_of_the_best_are_tried_until_none_is_better() -> None:
    machine = Machine(lambda each: 0.1 + 0.05 * abs(number_of(each) - 40))
    search = machine.search(2_000.0)
    search.measure_given()
    finalists = search.halve([configuration(number) for number in (0, 34, 35)])

    def near(arm: Arm) -> list[Arm]:
        return [configuration(number_of(arm) + step) for step in (-1, 1)]

    assert search.look_around(finalists, near)[0] == configuration(40)


def test_rounds_go_on_until_the_deadline_and_pair_each_finalist_with_the_given_one() -> None:
    machine = Machine(lambda each: 0.1 if number_of(each) == 1 else 0.2, noise=0.01)
    search = machine.search(200.0)
    search.measure_given()
    ratios = search.confirm([configuration(1), configuration(2)])
    assert set(ratios) == {configuration(1), configuration(2)}
    assert ratios[configuration(1)].estimate == pytest.approx(0.5, rel=0.05)
    assert ratios[configuration(1)].excludes_one
    assert not ratios[configuration(2)].excludes_one
    assert machine.now <= 200.0


def test_an_interruption_keeps_the_complete_rounds() -> None:
    def seconds(arm: Arm) -> float:
        if len(machine.taken) > 12:
            raise KeyboardInterrupt
        return 0.1 * (1 + number_of(arm))

    machine = Machine(seconds)
    search = machine.search(1_000.0)
    search.measure_given()
    ratios = search.confirm([configuration(1)])
    assert ratios[configuration(1)].count == 5
    assert search.was_interrupted


def test_the_given_configuration_stays_unless_another_is_shown_to_be_faster() -> None:
    given, first, second = map(configuration, range(3))

    def simplest(arm: Arm) -> tuple[int, int]:
        return number_of(arm), 0

    assert choose(given, {}, simplest) == given
    assert choose(given, {first: ratio(0.9, 0.8, 1.01)}, simplest) == given
    assert choose(given, {first: ratio(0.99, 0.985, 0.995)}, simplest) == given
    assert choose(given, {first: ratio(0.9, 0.8, 0.97)}, simplest) == first
    # Too few rounds for an interval: a tenth may be chance, a third is not.
    assert choose(given, {first: ratio(0.9)}, simplest) == given
    assert choose(given, {first: ratio(0.67)}, simplest) == first
    # The second is faster by a little only, and the first is simpler.
    assert choose(given, {first: ratio(0.71, 0.6, 0.8), second: ratio(0.7, 0.6, 0.8)}, simplest) == first
    assert choose(given, {first: ratio(0.8, 0.7, 0.9), second: ratio(0.7, 0.6, 0.8)}, simplest) == second


def test_a_given_configuration_above_a_limit_gives_way_to_a_slower_one() -> None:
    given, first = map(configuration, range(2))
    chosen = choose(given, {first: ratio(1.4, 1.3, 1.5)}, lambda each: (0, 0), may_keep=False)
    assert chosen == first
