"""Paired ratios, and the coverage of their intervals; scipy is the oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from etl.measuring.statistics import (
    MIN_ROUNDS,
    Interval,
    central_mean,
    paired_ratios,
    ratio_interval,
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


@pytest.mark.parametrize("count", range(1, MIN_ROUNDS))
def test_fewer_than_six_rounds_have_an_estimate_and_no_interval(count: int) -> None:
    assert ratio_interval([2.0] * count) == Interval(pytest.approx(2.0), None, None, count)


def test_six_rounds_have_an_interval() -> None:
    found = ratio_interval([2.0] * MIN_ROUNDS)
    assert (found.low, found.high) == pytest.approx((2.0, 2.0))


@pytest.mark.parametrize("count", [6, 9, 20])
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


def test_the_central_mean_leaves_out_a_quarter_at_each_end() -> None:
    assert central_mean([10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0], by=[8, 7, 6, 5, 4, 3, 2, 1]) == 45.0
    assert central_mean([1000.0, 2.0, 4.0, 0.0], by=[1000, 2, 4, 0]) == 3.0


def test_central_means_of_parts_add_up_to_the_central_mean_of_their_sum() -> None:
    random = np.random.default_rng(0)
    one, other = random.uniform(0, 1, 11), random.uniform(0, 5, 11)
    both = one + other
    by = both.tolist()
    assert central_mean(one.tolist(), by) + central_mean(other.tolist(), by) == pytest.approx(central_mean(by, by))
