"""Balanced rounds: each measures every variant once, in its own order, despite failures and interruptions."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from etl.measuring.processes import MeasurementError
from etl.measuring.rounds import Rounds, SamplePlace, balanced_order

NAMES = ("raw", "presaved", "other", "another")
SEEDS = range(8)


def orders(count: int, rounds: int, seed: int) -> list[list[int]]:
    return [balanced_order(count, number, seed) for number in range(rounds)]


def times_before(taken: Sequence[Sequence[int]]) -> Counter[tuple[int, int]]:
    """Return how often the first of each pair of arms came before the second."""
    return Counter(pair for order in taken for pair in itertools.combinations(order, 2))


@pytest.mark.parametrize("count", range(1, 15))
def test_after_an_even_number_of_rounds_each_arm_came_before_each_other_one_in_half_of_them(count: int) -> None:
    for seed, pairs in itertools.product(SEEDS, range(1, 13)):
        taken = orders(count, 2 * pairs, seed)
        assert all(sorted(each) == list(range(count)) for each in taken)
        assert times_before(taken) == dict.fromkeys(itertools.permutations(range(count), 2), pairs)


@pytest.mark.parametrize("count", range(1, 15))
def test_a_whole_cycle_has_each_arm_in_each_position_and_after_each_other_one_equally_often(count: int) -> None:
    rounds = 2 * count if count % 2 else count
    for seed, cycle in itertools.product(SEEDS, range(3)):
        taken = orders(count, (cycle + 1) * rounds, seed)[-rounds:]
        places = itertools.product(range(count), range(count))
        assert Counter(place for order in taken for place in enumerate(order)) == dict.fromkeys(places, rounds / count)
        after = Counter(pair for order in taken for pair in itertools.pairwise(order))
        assert after == dict.fromkeys(itertools.permutations(range(count), 2), rounds / count)


def test_any_order_of_three_may_come_first() -> None:
    assert {tuple(balanced_order(3, 0, seed)) for seed in range(200)} == set(itertools.permutations(range(3)))


def test_which_round_of_a_pair_comes_first_is_not_tied_to_its_number() -> None:
    # A cycle of four arms has two pairs: the first leaves only the direction of the second open.
    second = Counter(tuple(balanced_order(4, 2, seed)) for seed in range(500) if orders(4, 2, seed) == orders(4, 2, 0))
    assert len(second) == 2
    assert set(second) == {tuple(balanced_order(4, 2, 0)), tuple(balanced_order(4, 2, 0))[::-1]}


def test_each_variant_is_measured_once_a_round_in_balanced_order() -> None:
    taken: list[list[str]] = [[] for _ in range(8)]

    def take(name: str, number: int) -> tuple[str, int]:
        taken[number].append(name)
        return name, number

    rounds = Rounds(NAMES, take)
    rounds.run(8)
    assert rounds.finished == 8
    assert taken == [[NAMES[arm] for arm in order] for order in orders(4, 8, rounds.seed)]
    assert rounds.samples == {name: {number: (name, number) for number in range(8)} for name in NAMES}


def test_without_a_seed_one_is_drawn_and_noted() -> None:
    assert len({Rounds(NAMES, lambda *_: None).seed for _ in range(5)}) > 1
    assert Rounds(NAMES, lambda *_: None, seed=0).seed == 0


def test_position_and_time_of_each_sample_are_noted() -> None:
    began = time.time()
    taken: list[tuple[str, int, SamplePlace]] = []
    rounds = Rounds(NAMES, lambda name, n: taken.append((name, n, rounds.places[name][n])))
    rounds.run(3)
    assert [place.position for _, _, place in taken] == [0, 1, 2, 3] * 3
    times = [began, *(place.started_at for _, _, place in taken), time.time()]
    assert times == sorted(times)
    assert rounds.places == {name: {number: place for each, number, place in taken if each == name} for name in NAMES}


def test_what_is_left_out_leaves_the_others_balanced() -> None:
    taken: list[list[int]] = [[] for _ in range(12)]

    def take(arm: int, number: int) -> None:
        if arm == 3 and number == 4:
            raise MeasurementError("it was killed")
        taken[number].append(arm)

    rounds = Rounds(range(5), take)
    for number in range(12):
        rounds.take_round(None if number < 6 else [0, 1, 4])
    assert [len(each) for each in taken] == [5] * 4 + [4] * 2 + [3] * 6
    assert {count for pair, count in times_before(taken[:6]).items() if 3 not in pair} == {3}
    assert set(times_before(taken[6:]).values()) == {3}


def test_a_variant_that_fails_is_left_out_and_keeps_its_samples() -> None:
    failures: list[tuple[str, str]] = []

    def take(name: str, number: int) -> int:
        if name == "other" and number == 1:
            raise MeasurementError("it was killed")
        return number

    rounds = Rounds(NAMES, take, on_failure=lambda name, error: failures.append((name, str(error))))
    rounds.run(3)
    assert rounds.failed == {"other": "it was killed"}
    assert failures == [("other", "it was killed")]
    assert rounds.samples["other"] == {0: 0}
    assert list(rounds.places["other"]) == [0]
    assert rounds.variants == ["raw", "presaved", "another"]
    assert all(list(rounds.samples[name]) == [0, 1, 2] for name in rounds.variants)


def test_any_other_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        Rounds(NAMES, lambda name, _: 1 // 0).run(1)


def test_existing_samples_are_not_taken_again() -> None:
    taken: list[tuple[str, int]] = []
    begun: list[int] = []

    @contextmanager
    def begin(number: int) -> Iterator[None]:
        begun.append(number)
        yield

    rounds = Rounds(
        ["raw", "other"],
        lambda name, number: taken.append((name, number)),
        taken={"raw": {0: None, 1: None}, "other": {0: None}},
        begin=begin,
    )
    rounds.run(3)
    assert sorted(taken) == [("other", 1), ("other", 2), ("raw", 2)]
    assert begun == [1, 2]  # a complete round does not begin again


def test_an_interrupted_round_continues_or_is_dropped() -> None:
    interrupt = [True]
    taken: list[tuple[str, int]] = []

    def take(name: str, number: int) -> None:
        if number == 1 and len(taken) == 6 and interrupt:
            interrupt.clear()
            raise KeyboardInterrupt
        taken.append((name, number))

    rounds = Rounds(NAMES, take)
    with pytest.raises(KeyboardInterrupt):
        rounds.run(2)
    assert rounds.finished == 1
    rounds.run(2)
    assert taken == [(NAMES[arm], number) for number in range(2) for arm in balanced_order(4, number, rounds.seed)]
    assert sorted(rounds.places[name][1].position for name in NAMES) == [0, 1, 2, 3]
    rounds.finished = 1
    rounds.drop_unfinished()
    for kept in (rounds.samples, rounds.places):
        assert all(list(each) == [0] for each in kept.values())
