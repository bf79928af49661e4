"""The search for the best configuration, with made-up times of a turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
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
        self.processes = 0
        self.taken: list[Arm] = []
        self.looked_at: list[Arm] = []
        self._seconds = seconds_per_batch
        self._noise = random.Random(3)
        self._spread = noise

    def take(self, arms: Sequence[Arm]) -> Generator[TuningSample, None, None]:
        self.processes += 1
        for arm in arms:
            self.taken.append(arm)
            seconds = self._seconds(arm) * (1 + self._noise.gauss(0, self._spread))
            self.now += 1.0 + seconds
            yield TuningSample(seconds, seconds, 10**6)

    def look(self, arms: Sequence[Arm]) -> Generator[TuningSample, None, None]:
        """Yield samples of a tenth of the batches."""
        for arm in arms:
            self.looked_at.append(arm)
            seconds = self._seconds(arm)
            self.now += 1.0 + seconds / 10
            yield TuningSample(seconds, seconds, 10**6)

    def renew(self) -> None:
        self.renewed += 1
        self.now += 2.0

    def search(
        self, seconds: float, is_eligible: Callable[[Arm], bool] = lambda _: True, looks: bool = False
    ) -> Search:
        return Search(
            configuration(0),
            self.take,
            look=self.look if looks else None,
            renew=self.renew,
            epoch_batches=100.0,
            deadline=seconds,
            seed=1,
            progress=lambda phase, done, total: None,
            is_eligible=is_eligible,
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


def nothing_near(_: Arm) -> list[Arm]:
    return []


def test_the_fastest_of_many_is_found_in_spite_of_noise() -> None:
    machine = Machine(lambda each: 0.5 + 0.05 * abs(number_of(each) - 17), noise=0.03)
    search = machine.search(1_000.0)
    assert search.measure_given() == 32
    found = search.confirm(search.explore(map(configuration, range(24)), nothing_near))
    assert configuration(17) in found
    assert {number_of(each) for each in found} <= {15, 16, 17, 18, 19}


def test_a_round_alternates_in_one_process_and_ends_in_reverse_order() -> None:
    machine = Machine(lambda each: 0.5)
    search = machine.search(30.0)
    search.measure_given()
    search.explore([configuration(1), configuration(2)], nothing_near)
    first = machine.taken[1:7]
    assert set(first[:3]) == set(map(configuration, range(3)))
    assert first[3:] == first[2::-1]
    assert machine.processes == 2


def test_a_configuration_leaves_once_it_is_shown_to_be_slower_by_more_than_two_percent() -> None:
    times = {0: 1.0, 1: 1.0, 2: 1.1, 3: 1.015, 4: 1.6}
    machine = Machine(lambda each: times[number_of(each)], noise=0.001)
    search = machine.search(300.0)
    search.measure_given()
    found = search.confirm(search.explore(map(configuration, range(1, 5)), nothing_near))
    assert set(found) == {configuration(1), configuration(3)}
    assert [len(configuration(number).rounds) for number in (4, 2)] == [1, 5]
    assert "1.60 times as long as the best" in configuration(4).left
    assert "90% interval" in configuration(2).left
    assert configuration(3).left == ""


def test_configurations_that_are_many_times_as_slow_do_not_use_up_the_time_of_the_others() -> None:
    times = {0: 1.0, 1: 0.9, **dict.fromkeys(range(2, 12), 30.0), 12: 3.0}
    machine = Machine(lambda each: times[number_of(each)], noise=0.001)
    search = machine.search(300.0, looks=True)
    search.measure_given()
    found = search.confirm(search.explore(map(configuration, times), nothing_near))
    assert found == [configuration(1)]
    assert len(configuration(1).rounds) > 10
    slow = configuration(2)
    assert slow.left == "its first batches took 30.0 times as long as those of the given configuration"
    assert (slow.rounds, len(slow.samples)) == ({}, 1)
    assert slow not in machine.taken
    assert configuration(12) in machine.taken
    assert len(machine.looked_at) == len(times)  # each once, before its first turn


def test_a_configuration_that_fails_when_it_is_looked_at_gets_no_turn() -> None:
    machine = Machine(lambda each: 0.5)
    look = machine.look

    def failing(arms: Sequence[Arm]) -> Generator[TuningSample, None, None]:
        for arm in arms:
            if arm is configuration(1):
                raise MeasurementError("it broke", reason="it broke")
            yield from look([arm])

    machine.look = failing  # type: ignore[method-assign]
    search = machine.search(100.0, looks=True)
    search.measure_given()
    assert search.explore(map(configuration, range(3)), nothing_near) == [configuration(2)]
    assert configuration(1).failed == "it broke"
    assert configuration(1) not in machine.taken


def test_every_round_has_a_new_server() -> None:
    machine = Machine(lambda each: 0.1)
    search = machine.search(200.0)
    search.measure_given()
    assert machine.renewed == 0
    search.confirm([configuration(1)])
    assert machine.renewed == len(configuration(1).rounds) > 6


def test_what_there_is_no_time_for_is_left_out() -> None:
    machine = Machine(lambda each: 1.0)
    search = machine.search(60.0)
    assert search.measure_given() == 4
    search.confirm(search.explore(map(configuration, range(30)), nothing_near))
    assert 4 <= len(set(machine.taken)) < 15
    assert machine.now < 75.0
    without_time = [each for each in map(configuration, range(1, 30)) if "no time" in each.left]
    assert without_time
    assert all(each.rounds for each in without_time)


def test_a_configuration_that_fails_is_left_out_and_named_and_the_others_go_on() -> None:
    def seconds(arm: Arm) -> float:
        if number_of(arm) == 2:
            raise MeasurementError("raw raised OSError: no space", reason="OSError: no space")
        return 0.1

    search = Machine(seconds).search(100.0)
    search.measure_given()
    finalists = search.explore(map(configuration, range(5)), nothing_near)
    assert [configuration(number).failed for number in range(5)] == ["", "", "OSError: no space", "", ""]
    assert set(finalists) == {configuration(number) for number in (1, 3, 4)}


def test_a_given_configuration_that_fails_ends_the_search() -> None:
    def fail(arm: Arm) -> float:
        raise MeasurementError("raw raised OSError: no space", reason="OSError: no space")

    with pytest.raises(MeasurementError, match="no space"):
        Machine(fail).search(100.0).measure_given()


def test_without_a_round_of_the_given_configuration_nothing_is_found_to_be_faster() -> None:
    def seconds(arm: Arm) -> float:
        if arm is configuration(0) and machine.taken.count(arm) > 1:
            raise MeasurementError("raw was killed", reason="it was killed")
        return 0.1

    machine = Machine(seconds)
    search = machine.search(100.0)
    search.measure_given()
    found = search.explore([configuration(1)], nothing_near)
    assert len(configuration(1).rounds) == 1
    assert found == search.confirm(found) == []
    assert configuration(0).failed == "it was killed"


def test_neighbours_of_the_best_enter_until_none_is_better() -> None:
    machine = Machine(lambda each: 0.5 + 0.2 * abs(number_of(each) - 40))
    search = machine.search(2_000.0)
    search.measure_given()

    def near(arm: Arm) -> list[Arm]:
        return [configuration(number_of(arm) + step) for step in (-1, 1)]

    assert search.explore([configuration(34), configuration(35)], near)[0] == configuration(40)


def test_what_may_not_be_chosen_makes_no_other_leave() -> None:
    machine = Machine(lambda each: (1.0, 0.9, 0.1)[number_of(each)])
    search = machine.search(200.0, lambda each: each != configuration(2))
    search.measure_given()
    assert search.confirm(search.explore([configuration(1), configuration(2)], nothing_near)) == [configuration(1)]
    assert configuration(1).left == ""
    assert len(configuration(2).rounds) == 1


def test_a_given_one_that_may_not_be_chosen_makes_no_other_leave() -> None:
    machine = Machine(lambda each: (0.5, 1.0, 1.5)[number_of(each)])
    search = machine.search(200.0, lambda each: each is not configuration(0))
    search.measure_given()
    assert search.confirm(search.explore([configuration(1), configuration(2)], nothing_near)) == [configuration(1)]
    assert configuration(1).left == ""
    assert configuration(2).left


def test_rounds_go_on_until_the_deadline_and_pair_each_finalist_with_the_given_one() -> None:
    machine = Machine(lambda each: 1.0 if number_of(each) == 1 else 1.2, noise=0.01)
    search = machine.search(200.0)
    search.measure_given()
    assert search.confirm([configuration(1)]) == [configuration(1)]
    ratio = configuration(1).ratio_to(configuration(0))
    assert ratio is not None
    assert ratio.estimate == pytest.approx(1 / 1.2, rel=0.02)
    assert ratio.excludes_one
    assert 180.0 < machine.now <= 200.0


def test_an_interruption_keeps_the_complete_rounds() -> None:
    def seconds(arm: Arm) -> float:
        if len(machine.taken) > 12:
            raise KeyboardInterrupt
        return 0.1

    machine = Machine(seconds)
    search = machine.search(1_000.0)
    search.measure_given()
    assert search.confirm([configuration(1)]) == [configuration(1)]
    assert len(configuration(1).rounds) == 2
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
