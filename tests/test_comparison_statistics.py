"""Ratios paired within rounds, and the interval that they are known to lie in."""

from __future__ import annotations

import numpy as np
import pytest

from etl.comparison.report import Interval
from etl.comparison.statistics import FEWEST_ROUNDS, central_mean, interval, paired_ratios, verdict, width

TRIALS = 400


def test_a_ratio_is_taken_within_each_round_that_both_have() -> None:
    assert paired_ratios({0: 2.0, 1: 9.0, 3: 6.0}, {3: 2.0, 0: 4.0, 2: 1.0}) == [0.5, 3.0]


def test_a_drift_that_meets_both_in_the_same_round_leaves_the_ratio_as_it_is() -> None:
    drift = {number: 1.0 + number for number in range(8)}
    ratio = interval(paired_ratios({number: 0.25 * each for number, each in drift.items()}, drift))
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((0.25, 0.25, 0.25))


def test_the_median_of_an_even_number_of_ratios_is_their_geometric_middle() -> None:
    assert interval([0.5, 2.0]).median == pytest.approx(1.0)


def test_a_ratio_and_its_inverse_have_inverse_intervals() -> None:
    ratios = np.random.default_rng(3).lognormal(0.1, 0.2, 9)
    one, other = interval(ratios.tolist()), interval((1 / ratios).tolist())
    assert one.low is not None
    assert one.high is not None
    assert other.median == pytest.approx(1 / one.median)
    assert (other.low, other.high) == pytest.approx((1 / one.high, 1 / one.low), rel=0.05)


@pytest.mark.parametrize("rounds", range(1, FEWEST_ROUNDS))
def test_fewer_than_five_rounds_have_a_median_and_no_interval(rounds: int) -> None:
    assert interval([2.0] * rounds) == Interval(pytest.approx(2.0), None, None, rounds)


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, -2.0], [float("nan")], [float("inf")]])
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_what_is_no_ratio_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="an interval needs values above 0"):
        interval(values)


@pytest.mark.parametrize("rounds", [6, 20])
def test_about_95_of_100_intervals_hold_the_true_ratio(rounds: int) -> None:
    random = np.random.default_rng(rounds)
    held = 0
    for _ in range(TRIALS):
        found = interval(random.lognormal(np.log(0.8), 0.1, rounds).tolist())
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.8 <= found.high
    assert 0.91 <= held / TRIALS <= 0.99


def test_more_rounds_give_a_narrower_interval() -> None:
    ratios = np.random.default_rng(1).lognormal(0, 0.1, 200).tolist()
    assert width(interval(ratios)) < width(interval(ratios[:8]))
    assert width(interval(ratios[:3])) == width(None) == float("inf")


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.8, 0.99, "faster"),
        (1.01, 1.2, "slower"),
        (0.9, 1.1, "no difference shown"),
        (1.0, 1.1, "no difference shown"),
        (None, None, "too few rounds"),
    ],
)
def test_a_difference_is_shown_only_where_the_interval_leaves_out_1(
    low: float | None, high: float | None, said: str
) -> None:
    assert verdict(Interval(1.0, low, high, 9)) == said


def test_the_central_mean_leaves_out_a_quarter_at_each_end() -> None:
    assert central_mean([10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0], by=[8, 7, 6, 5, 4, 3, 2, 1]) == 45.0
    assert central_mean([1000.0, 2.0, 4.0, 0.0], by=[1000, 2, 4, 0]) == 3.0


def test_central_means_of_parts_add_up_to_the_central_mean_of_their_sum() -> None:
    random = np.random.default_rng(0)
    one, other = random.uniform(0, 1, 11), random.uniform(0, 5, 11)
    both = one + other
    by = both.tolist()
    assert central_mean(one.tolist(), by) + central_mean(other.tolist(), by) == pytest.approx(central_mean(by, by))
