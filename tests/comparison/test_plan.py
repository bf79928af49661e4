"""How many records are measured: enough, no more than there are, and more where there is more time."""

from __future__ import annotations

from pathlib import Path

import pytest

from etl.comparison.prediction import MIN_MEASURED_BATCHES, choose_records, seconds_needed
from tests.comparison_workloads import make_profile, make_workload

BUDGETS = (-5.0, 0.0, *range(30, 120, 2), 1e6)


def test_never_fewer_than_the_least_batches_and_never_more_than_the_source(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    for seconds in BUDGETS:
        chosen = choose_records(workload, make_profile(), seconds)
        assert MIN_MEASURED_BATCHES * 10 <= chosen <= 200


def test_more_time_gives_more_records_and_with_enough_all_of_them(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    chosen = [choose_records(workload, make_profile(load=5e-3), seconds) for seconds in BUDGETS]
    assert chosen == sorted(chosen)
    assert len(set(chosen)) > 5
    assert chosen[-1] == 200


def test_chosen_are_whole_batches_that_have_room_and_one_more_would_not(tmp_path: Path) -> None:
    workload, profile = make_workload(tmp_path), make_profile(load=5e-3)
    for seconds in BUDGETS:
        chosen = choose_records(workload, profile, seconds)
        if MIN_MEASURED_BATCHES * 10 < chosen < 200:
            assert chosen % 10 == 0
            assert seconds_needed(workload, profile, chosen // 10) <= seconds
            assert seconds_needed(workload, profile, chosen // 10 + 1) > seconds


def test_a_source_of_fewer_batches_than_the_least_is_measured_whole(tmp_path: Path) -> None:
    assert choose_records(make_workload(tmp_path, rows=57), make_profile(), 0.0) == 57
    assert choose_records(make_workload(tmp_path, rows=4), make_profile(), 0.0) == 4


def test_a_last_batch_that_is_not_full_belongs_to_the_whole_source(tmp_path: Path) -> None:
    assert choose_records(make_workload(tmp_path, rows=203), make_profile(), 1e6) == 203


@pytest.mark.parametrize(("asked", "chosen"), [(30, 30), (200, 200), (5000, 200)])
def test_as_many_records_as_were_asked_for_are_measured_where_there_are_so_many(
    tmp_path: Path, asked: int, chosen: int
) -> None:
    assert choose_records(make_workload(tmp_path, records=asked), make_profile(), 0.0) == chosen


def test_more_rounds_leave_room_for_fewer_records(tmp_path: Path) -> None:
    profile = make_profile(load=5e-3)
    few = choose_records(make_workload(tmp_path, rounds=3), profile, 80.0)
    many = choose_records(make_workload(tmp_path, rounds=12), profile, 80.0)
    assert many < few


def test_the_estimate_grows_with_the_batches(tmp_path: Path) -> None:
    workload, profile = make_workload(tmp_path), make_profile()
    needed = [seconds_needed(workload, profile, batches) for batches in range(6, 40)]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]
