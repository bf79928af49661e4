"""Predictions agree with small simulations, and the number of measured records suits the time budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from etl.comparison.candidates import Candidate, StoreKind, Threads
from etl.comparison.prediction import (
    MIN_MEASURED_BATCHES,
    choose_records,
    overlapped_seconds,
    predict_wall,
    seconds_needed,
    stage_seconds,
)
from tests.comparison_workloads import make_profile, make_split, make_workload

LOAD, COMPUTE = 1e-3, 4e-3
START = 2.0
STEPS = 20_000


def simulate(load: float, compute: float, loading_slowdown: float, compute_slowdown: float) -> float:
    """Simulate two workers in small steps of time, each slower while the other is running."""
    step = (load + compute) / STEPS
    now = 0.0
    while load > 0 or compute > 0:
        both = load > 0 and compute > 0
        if load > 0:
            load -= step / (loading_slowdown if both else 1)
        if compute > 0:
            compute -= step / (compute_slowdown if both else 1)
        now += step
    return now


@pytest.mark.parametrize("load", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("compute", [0.5, 1.0])
@pytest.mark.parametrize(("loading_slowdown", "compute_slowdown"), [(1, 1), (2, 1), (1, 2), (1.3, 1.6), (2, 2)])
def test_side_by_side_is_what_two_workers_take_that_slow_each_other_down(
    load: float, compute: float, loading_slowdown: float, compute_slowdown: float
) -> None:
    simulated = simulate(load, compute, loading_slowdown, compute_slowdown)
    predicted = overlapped_seconds(load, compute, loading_slowdown, compute_slowdown)
    assert predicted == pytest.approx(simulated, rel=1e-3)


def test_without_a_slowdown_the_longer_one_hides_the_shorter() -> None:
    assert overlapped_seconds(0.2, 0.5, 1.0, 1.0) == pytest.approx(0.5)
    assert overlapped_seconds(0.5, 0.2, 1.0, 1.0) == pytest.approx(0.5)


def test_halved_by_each_other_both_take_as_long_as_one_after_the_other() -> None:
    assert overlapped_seconds(0.3, 0.5, 2.0, 2.0) == pytest.approx(0.8)


def test_plain_is_the_sum_of_loading_and_compute(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    wall = predict_wall(workload, Candidate("raw"), Threads(2, 0), make_profile(LOAD, COMPUTE))
    assert wall == pytest.approx(200 * LOAD + 20 * COMPUTE)


@pytest.mark.parametrize(("load", "compute"), [(1e-3, 1e-4), (1e-4, 5e-3), (5e-4, 5e-3)])
def test_ahead_is_bounded_by_the_longer_of_both_and_by_their_sum(tmp_path: Path, load: float, compute: float) -> None:
    workload, profile = make_workload(tmp_path), make_profile(load, compute)
    wall = predict_wall(workload, Candidate("async-raw"), Threads(1, 1), profile)
    assert max(200 * load, 20 * compute) <= wall <= 200 * load + 20 * compute
    # The first batch's loading, and compute on the last, are not hidden.
    assert wall == pytest.approx(max(200 * load, 20 * compute) + min(10 * load, compute))


@pytest.mark.parametrize("device", ["none", "cuda:0"])
@pytest.mark.parametrize(("load", "compute"), [(1e-3, 5e-3), (5e-4, 2e-2)])
def test_beside_a_device_a_plain_strategy_overlaps_unless_the_loop_waits(
    tmp_path: Path, device: str, load: float, compute: float
) -> None:
    profile = make_profile(load, compute, device=device)
    goes_on, waits = (make_workload(tmp_path, compute="simulated:5ms", sync_every_step=each) for each in (False, True))
    plain = Candidate("raw"), Threads(2, 0), profile
    # What a loop of 20 batches takes that loads the next one while the device computes.
    loaded = free = 0.0
    for _ in range(20):
        loaded += 10 * load
        loaded = max(loaded, free)  # until the step before is done, no other one is begun
        free = loaded + compute
    assert predict_wall(goes_on, *plain) == pytest.approx(free)
    assert predict_wall(waits, *plain) == pytest.approx(20 * (10 * load + compute))


def test_two_threads_load_as_much_faster_as_the_profile_has_seen(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    profile = make_profile(1e-3, 1e-4, splits=[make_split(1, 1, 1000.0), make_split(1, 2, 1900.0)])
    wall = predict_wall(workload, Candidate("async-raw"), Threads(1, 2), profile)
    assert wall == pytest.approx(200 * 1e-3 / 1.9 + 1e-4)


def test_ahead_without_threads_is_plain(tmp_path: Path) -> None:
    workload, profile = make_workload(tmp_path), make_profile()
    plain = predict_wall(workload, Candidate("raw"), Threads(2, 0), profile)
    assert predict_wall(workload, Candidate("async-raw"), Threads(2, 0), profile) == plain


def test_a_store_is_read_at_the_speed_of_copying_and_only_later_stages_are_left(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    with workload.write(StoreKind("npy", "read"), 1) as store:
        nbytes = store.nbytes
    profile = make_profile(LOAD, COMPUTE, copy_bytes_per_second=24e3)
    wall = predict_wall(workload, Candidate("presaved", "npy", "read"), Threads(2, 0), profile)
    assert wall == pytest.approx(nbytes / 24e3 + 20 * COMPUTE)


def test_seconds_after_a_stage_are_those_of_the_later_ones() -> None:
    profile = make_profile(4.0, stages=("read", "decode", "resize", "normalise"))
    assert [stage_seconds(profile, each) for each in (None, "read", "resize", "normalise")] == [4.0, 3.0, 1.0, 0.0]


BUDGETS = (-5.0, 0.0, *range(30, 120, 2), 1e6)


def test_never_fewer_than_the_least_batches_and_never_more_than_the_source(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    for seconds in BUDGETS:
        chosen = choose_records(workload, make_profile(), seconds, START)
        assert MIN_MEASURED_BATCHES * 10 <= chosen <= 200


def test_more_time_gives_more_records_and_with_enough_all_of_them(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    chosen = [choose_records(workload, make_profile(load=5e-3), seconds, START) for seconds in BUDGETS]
    assert chosen == sorted(chosen)
    assert len(set(chosen)) > 5
    assert chosen[-1] == 200


def test_whole_batches_are_chosen_so_that_one_more_would_not_fit(tmp_path: Path) -> None:
    workload, profile = make_workload(tmp_path), make_profile(load=5e-3)
    for seconds in BUDGETS:
        chosen = choose_records(workload, profile, seconds, START)
        if MIN_MEASURED_BATCHES * 10 < chosen < 200:
            assert chosen % 10 == 0
            assert seconds_needed(workload, profile, chosen // 10, START) <= seconds
            assert seconds_needed(workload, profile, chosen // 10 + 1, START) > seconds


def test_a_source_with_fewer_batches_than_the_minimum_is_measured_completely(tmp_path: Path) -> None:
    assert choose_records(make_workload(tmp_path, rows=57), make_profile(), 0.0, START) == 57
    assert choose_records(make_workload(tmp_path, rows=4), make_profile(), 0.0, START) == 4


def test_a_partial_last_batch_belongs_to_the_whole_source(tmp_path: Path) -> None:
    assert choose_records(make_workload(tmp_path, rows=203), make_profile(), 1e6, START) == 203


@pytest.mark.parametrize(("asked", "chosen"), [(30, 30), (200, 200), (5000, 200)])
def test_the_requested_number_of_records_is_measured_if_the_source_has_them(
    tmp_path: Path, asked: int, chosen: int
) -> None:
    assert choose_records(make_workload(tmp_path, records=asked), make_profile(), 0.0, START) == chosen


def test_more_rounds_leave_room_for_fewer_records(tmp_path: Path) -> None:
    profile = make_profile(load=5e-3)
    few = choose_records(make_workload(tmp_path, rounds=3), profile, 60.0, START)
    many = choose_records(make_workload(tmp_path, rounds=12), profile, 60.0, START)
    assert many < few


def test_a_process_that_starts_slowly_leaves_room_for_fewer_records(tmp_path: Path) -> None:
    workload, profile = make_workload(tmp_path), make_profile(load=5e-3)
    assert choose_records(workload, profile, 60.0, 3.0) < choose_records(workload, profile, 60.0, 0.1)


def test_the_estimate_grows_with_the_batches(tmp_path: Path) -> None:
    workload, profile = make_workload(tmp_path), make_profile()
    needed = [seconds_needed(workload, profile, batches, START) for batches in range(6, 40)]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]
