"""How many records, epochs and rounds are measured in the time that there is, and what gives way first."""

from __future__ import annotations

from pathlib import Path

import pytest

from etl.comparison.request.candidates import Candidate
from etl.comparison.run.schedule import (
    EPOCH_SECONDS,
    MIN_BATCHES,
    MIN_ROUNDS_SHOWN,
    Pace,
    choose_records,
    choose_rounds,
    describe_schedule,
    first_records,
    recipes_of,
)
from etl.comparison.run.workload import Workload
from etl.measuring.sample import Recipe
from etl.measuring.statistics import MIN_ROUNDS, USUAL_ROUNDS
from tests.comparison_workloads import make_workload

RAW, AHEAD = Candidate("raw"), Candidate("async-raw")
PACES = {RAW: Pace(0.1, 0.1), AHEAD: Pace(0.1, 0.05)}
BUDGETS = (-5.0, 0.0, *range(30, 120, 2), 1e6)


def looked_at(folder: Path, rows: int = 1000, **settings: object) -> Workload:
    """Return a workload of batches of 10 records with the records of the first look."""
    workload = make_workload(folder, rows, strategies=("raw", "async-raw"), **settings)
    workload.select(first_records(workload))
    return workload


def test_the_first_look_is_at_as_few_batches_as_can_be_measured(tmp_path: Path) -> None:
    workload = looked_at(tmp_path)  # which reads two batches ahead
    assert workload.margin_batches == 2 + 2
    assert len(workload.records) == (MIN_BATCHES + 4) * 10
    assert workload.recipe(RAW) == workload.recipe(AHEAD) == Recipe(2 + MIN_BATCHES, 2)
    workload = looked_at(tmp_path, prefetch_size=8)
    assert len(workload.records) == (MIN_BATCHES + 16) * 10
    assert [workload.recipe(each) for each in (RAW, AHEAD)] == [Recipe(2 + MIN_BATCHES, 2), Recipe(8 + MIN_BATCHES, 8)]


def test_a_source_of_few_batches_is_measured_completely(tmp_path: Path) -> None:
    for rows in (4, 57, 140):
        workload = looked_at(tmp_path, rows)
        assert (len(workload.records), workload.recipe(AHEAD).batches) == (rows, None)


@pytest.mark.parametrize(("asked", "chosen", "batches"), [(30, 30, None), (200, 200, 18), (5000, 1000, None)])
def test_the_requested_number_of_records_is_measured_if_the_source_has_them(
    tmp_path: Path, asked: int, chosen: int, batches: int | None
) -> None:
    workload = looked_at(tmp_path, records=asked)
    assert (len(workload.records), workload.recipe(AHEAD).batches) == (chosen, batches)
    assert choose_records(workload, PACES, 1e6) == chosen


def test_more_time_gives_more_records_and_with_enough_all_of_them(tmp_path: Path) -> None:
    workload = looked_at(tmp_path)
    chosen = [choose_records(workload, PACES, seconds) for seconds in BUDGETS]
    assert chosen == sorted(chosen)
    assert len(set(chosen)) > 5
    assert (chosen[0], chosen[-1]) == (len(workload.records), 1000)


def test_more_rounds_leave_room_for_fewer_records(tmp_path: Path) -> None:
    few, many = (choose_records(looked_at(tmp_path, rounds=each), PACES, 60.0) for each in (6, 12))
    assert many < few


def test_short_epochs_are_repeated_unless_only_a_part_of_them_is_taken_or_they_are_cold(tmp_path: Path) -> None:
    paces = {RAW: Pace(0.01, 0.01), AHEAD: Pace(1.0, 1.0)}
    recipes = recipes_of(looked_at(tmp_path, 100), paces)
    assert recipes[RAW].epochs * 10 * 0.01 == pytest.approx(EPOCH_SECONDS)
    assert recipes[AHEAD].epochs == 1
    assert recipes_of(looked_at(tmp_path, 1000), paces)[RAW].epochs == 1
    assert recipes_of(looked_at(tmp_path, 100, cache="cold"), paces)[RAW].epochs == 1


@pytest.mark.parametrize(
    ("budget", "left", "rounds"),
    [
        (60.0, 1000.0, USUAL_ROUNDS),
        (60.0, 7.0, 7),
        (60.0, 1.0, MIN_ROUNDS),
        (60.0, -100.0, MIN_ROUNDS),
        (20.0, 7.0, 7),
        (20.0, -0.5, 4),
        (20.0, -100.0, MIN_ROUNDS_SHOWN),
    ],
)
def test_rounds_give_way_but_a_comparison_of_the_usual_time_has_enough_for_intervals(
    tmp_path: Path, budget: float, left: float, rounds: int
) -> None:
    workload = looked_at(tmp_path, budget_seconds=budget)
    assert choose_rounds(workload, 1.0, left) == rounds
    assert choose_rounds(looked_at(tmp_path, rounds=17), 1.0, left) == 17


def test_what_gave_way_is_said(tmp_path: Path) -> None:
    assert describe_schedule(looked_at(tmp_path, 100), USUAL_ROUNDS, False) == ""
    assert describe_schedule(looked_at(tmp_path), 6, True) == (
        "To keep to the budget of time: 140 records instead of 1,000, 6 rounds instead of 8, more time, since fewer "
        "show nothing."
    )
