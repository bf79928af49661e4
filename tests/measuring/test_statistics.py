"""Paired ratios, and the coverage of their intervals; scipy is the oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from etl.measuring.statistics import (
    MIN_ROUNDS,
    Interval,
    paired_ratios,
    ratio_interval,
    ratio_intervals,
    signed_rank_interval,
)

TRIALS = 1000


def noisy(count: int, seed: int) -> list[float]:
    return np.random.default_rng(seed).normal(0.05, 0.2, count).tolist()


@pytest.mark.parametrize("count", [6, 7, 8, 13, 20, 41])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_ends_are_where_the_signed_rank_test_of_scipy_begins_to_reject(count: int, confidence: float) -> None:
    values = noisy(count, seed=count)
    low, centre, high = signed_rank_interval(values, confidence)
    tail = 1 - confidence

    def p_value(supposed: float) -> float:
        return float(stats.wilcoxon(np.array(values) - supposed, method="exact").pvalue)

    # A supposed centre just inside the interval is not rejected, one just outside is.
    assert p_value(low + 1e-9) > tail >= p_value(low - 1e-9)
    assert p_value(high - 1e-9) > tail >= p_value(high + 1e-9)
    assert low < centre < high


def test_the_centre_is_the_median_of_the_means_of_all_pairs() -> None:
    values = noisy(9, seed=1)
    means = [(one + other) / 2 for index, one in enumerate(values) for other in values[index:]]
    assert signed_rank_interval(values, 0.95)[1] == pytest.approx(np.median(means))


def test_six_rounds_have_an_interval_and_fewer_an_estimate_only() -> None:
    for count in range(1, MIN_ROUNDS):
        assert ratio_interval([2.0] * count) == Interval(pytest.approx(2.0), None, None, count)
    found = ratio_interval([2.0] * MIN_ROUNDS)
    assert (found.low, found.high) == pytest.approx((2.0, 2.0))


@pytest.mark.parametrize("count", [6, 20])
def test_the_interval_contains_the_true_ratio_as_often_as_promised(count: int) -> None:
    random = np.random.default_rng(count)
    intervals = [ratio_interval(random.lognormal(np.log(0.8), 0.1, count).tolist()) for _ in range(TRIALS)]
    held = sum(each.low <= 0.8 <= each.high for each in intervals if each.low is not None and each.high is not None)
    # With a true coverage of 95%, fewer than 930 of 1,000 intervals hold the ratio by chance once in 300 times.
    assert held / TRIALS >= 0.93


def test_a_ratio_and_its_inverse_have_inverse_intervals() -> None:
    ratios = np.random.default_rng(3).lognormal(0.1, 0.2, 9)
    one, other = ratio_interval(ratios.tolist()), ratio_interval((1 / ratios).tolist())
    assert one.low is not None
    assert one.high is not None
    assert (other.estimate, other.low, other.high) == pytest.approx((1 / one.estimate, 1 / one.high, 1 / one.low))


def test_one_round_in_ten_may_be_an_outlier() -> None:
    ratios = np.random.default_rng(5).lognormal(0.0, 0.02, 20)
    ratios[[3, 11]] = [50.0, 1e-6]
    found = ratio_interval(ratios.tolist())
    assert found.low is not None
    assert found.high is not None
    assert 0.95 < found.low < found.high < 1.05


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [1.0, -2.0], [math.nan], [math.inf]])
def test_numbers_that_are_not_ratios_are_refused(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="an interval needs finite ratios above 0"):
        ratio_interval(ratios)


@pytest.mark.parametrize(
    ("low", "high", "shown"), [(0.8, 0.99, True), (1.01, 1.2, True), (0.9, 1.1, False), (1.0, 1.1, False)]
)
def test_a_difference_is_shown_only_if_the_interval_leaves_out_1(low: float, high: float, shown: bool) -> None:
    assert Interval(1.0, low, high, 9).excludes_one == shown


def test_without_an_interval_nothing_is_shown_and_its_width_has_no_bound() -> None:
    found = Interval(0.1, None, None, 3)
    assert not found.excludes_one
    assert found.width == math.inf


def test_a_ratio_is_taken_within_each_round_that_both_have() -> None:
    assert paired_ratios({0: 2.0, 1: 9.0, 3: 6.0}, {3: 2.0, 0: 4.0, 2: 1.0}) == [0.5, 3.0]


def test_a_drift_that_meets_both_in_the_same_round_leaves_the_ratio_as_it_is() -> None:
    drift = {number: 1.0 + number for number in range(8)}
    ratio = ratio_interval(paired_ratios({number: 0.25 * each for number, each in drift.items()}, drift))
    assert (ratio.low, ratio.estimate, ratio.high) == pytest.approx((0.25, 0.25, 0.25))


def rounds_of_equal_arms(random: np.random.Generator, rivals: int, count: int) -> dict[int, dict[int, float]]:
    """Return seconds of arms that differ by noise only, with a speed of the machine that differs between rounds."""
    speeds = random.lognormal(0.0, 0.2, count)
    walls = speeds[:, None] * random.lognormal(0.0, 0.03, (count, rivals + 1))
    return {arm: dict(enumerate(walls[:, arm].tolist())) for arm in range(rivals + 1)}


@pytest.mark.parametrize(("rivals", "count"), [(1, 6), (4, 8), (4, 20), (13, 8)])
def test_all_intervals_of_a_table_hold_together_in_19_of_20(rivals: int, count: int) -> None:
    random = np.random.default_rng(rivals * count)
    tables = [ratio_intervals(rounds_of_equal_arms(random, rivals, count), 0) for _ in range(400)]
    wrong = sum(any(each.excludes_one for each in table.values()) for table in tables)
    assert wrong / len(tables) < 0.05 + 3 * (0.05 * 0.95 / len(tables)) ** 0.5
    if rivals > 1 and count >= MIN_ROUNDS + 2:  # intervals for each ratio alone do not hold together
        alone = [
            [ratio_interval(paired_ratios(walls[arm], walls[0])) for arm in range(1, rivals + 1)]
            for walls in (rounds_of_equal_arms(random, rivals, count) for _ in range(200))
        ]
        assert sum(any(each.excludes_one for each in table) for table in alone) / len(alone) > 0.08


def test_a_ratio_is_that_of_the_means_and_inverts_with_its_interval() -> None:
    walls = rounds_of_equal_arms(np.random.default_rng(1), 2, 8)
    walls[2] = {number: 3 * each for number, each in walls[2].items()}
    forward, backward = ratio_intervals(walls, 0)[2], ratio_intervals({0: walls[0], 2: walls[2]}, 2)[0]
    means = [np.mean(list(walls[each].values())) for each in (0, 2)]
    assert forward.estimate == pytest.approx(means[1] / means[0])
    assert backward.estimate == pytest.approx(1 / forward.estimate)
    alone = ratio_intervals({0: walls[0], 2: walls[2]}, 0)[2]
    assert (backward.low, backward.high) == pytest.approx((1 / alone.high, 1 / alone.low))  # type: ignore[operator]
    assert forward.excludes_one


def test_ratios_need_enough_rounds_that_all_arms_have() -> None:
    walls = rounds_of_equal_arms(np.random.default_rng(2), 2, MIN_ROUNDS)
    assert {each.count for each in ratio_intervals(walls, 0).values()} == {MIN_ROUNDS}
    assert all(each.low is not None for each in ratio_intervals(walls, 0).values())
    del walls[1][3]
    assert {(each.count, each.low, each.high) for each in ratio_intervals(walls, 0).values()} == {
        (MIN_ROUNDS - 1, None, None)
    }
    assert ratio_intervals({0: walls[0]}, 0) == {}
    assert ratio_intervals({0: {0: 1.0}, 1: {1: 1.0}}, 0) == {}
    with pytest.raises(ValueError, match="finite times above 0"):
        ratio_intervals({0: {0: 1.0}, 1: {0: 0.0}}, 0)


def test_arms_that_are_equal_to_the_bit_have_an_interval_without_width() -> None:
    walls = rounds_of_equal_arms(np.random.default_rng(3), 1, 8)
    walls[2] = {number: 2 * each for number, each in walls[0].items()}
    found = ratio_intervals(walls, 0)[2]
    assert (found.low, found.estimate, found.high) == pytest.approx((2.0, 2.0, 2.0))
