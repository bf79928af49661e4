"""Shuffled rounds: each measures every variant once, in its own order, despite failures and interruptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from etl.measuring.processes import MeasurementError
from etl.measuring.rounds import Rounds

NAMES = ("raw", "presaved", "other", "another")


def test_each_variant_is_measured_once_a_round_in_another_order() -> None:
    orders: dict[int, list[str]] = {}
    rounds = Rounds(NAMES, lambda name, number: (name, number), progress=lambda name, n: order(n).append(name))

    def order(number: int) -> list[str]:
        return orders.setdefault(number, [])

    rounds.run(8)
    assert rounds.finished == 8
    assert all(sorted(each) == sorted(NAMES) for each in orders.values())
    assert len({tuple(each) for each in orders.values()}) > 1
    assert rounds.samples == {name: {number: (name, number) for number in range(8)} for name in NAMES}


def test_the_order_is_that_of_the_seed() -> None:
    def order(seed: int) -> list[str]:
        taken: list[str] = []
        Rounds(NAMES, lambda name, _: taken.append(name), seed=seed).run(6)
        return taken

    assert order(1) == order(1)
    assert order(1) != order(2)


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
    assert sorted(taken) == sorted((name, number) for name in NAMES for number in range(2))
    rounds.finished = 1
    rounds.drop_unfinished()
    assert all(list(each) == [0] for each in rounds.samples.values())
