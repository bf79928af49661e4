"""From samples to results: parts add up, and epochs are scaled by their batches."""

from __future__ import annotations

import statistics
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from etl.comparison.judge.noise import Noise
from etl.comparison.judge.report import Losses, Presaving
from etl.comparison.judge.results import (
    EpochScale,
    etl_alone_seconds,
    host_wait_seconds,
    losses_of,
    noise_of,
    parts_of,
    presaving_of,
    ratios_of,
    round_metrics,
    stall_tails_of,
)
from etl.comparison.request.answers import LoadingSample, WrittenStore
from etl.comparison.request.candidates import Candidate
from etl.measuring.clock import Split
from etl.measuring.noise import ProbeSeconds
from etl.measuring.rounds import SamplePlace
from etl.measuring.sample import Sample
from etl.measuring.waiting import WaitTimes
from tests.comparison_reports import photographs
from tests.comparison_workloads import make_sample

RAW, AHEAD = Candidate("raw"), Candidate("async-raw")
PARTS = ("wall", "stall", "host_wait", "compute", "etl_alone")
SIGNS = {"wall": 1, "compute": -1, "stall": -1}

WHOLE = EpochScale(records=512, measured=512, batch_size=64)


def sample(wall: float, stall: float = 0.1, compute: float = 0.2, **more: Any) -> Sample:
    """Return a sample of an epoch of 8 batches whose first batch takes a quarter of the time."""
    metrics = {
        "wall": Split(wall / 4, wall * 3 / 4),
        "stall": Split(stall / 4, stall * 3 / 4),
        "host_wait": Split(stall / 4, stall * 3 / 4),
        "compute": Split(compute / 4, compute * 3 / 4),
        "etl_alone": Split(0.5, 0.5),
        "compute_alone": compute / 10,
        "harness": 1e-5,
        "batches": 8,
        "samples": 512,
        "cpu_seconds": 1.0,
        "steal": 0.01,
        "other_processes": 0.02,
        "probes": [ProbeSeconds(0.002, 0.05), ProbeSeconds(0.003, 0.04)],
    }
    return make_sample(**{**metrics, **more})


def unexplained(samples: dict[int, Sample], scale: EpochScale) -> float:
    """Return the unexplained time of all rounds, averaged like the parts."""
    return statistics.fmean(
        sum(sign * scale.epoch_seconds(getattr(each.epoch, part)) for part, sign in SIGNS.items())
        - each.harness * scale.batches
        for each in samples.values()
    )


@pytest.mark.parametrize("rounds", [1, 2, 7])
@pytest.mark.parametrize("scale", [WHOLE, EpochScale(2000, 512, 64)])
def test_the_parts_add_up_to_the_wall_time_for_any_number_of_rounds(rounds: int, scale: EpochScale) -> None:
    random = np.random.default_rng(rounds)
    samples = {
        number: sample(wall, wall * random.uniform(0.1, 0.4), wall * random.uniform(0.3, 0.5))
        for number, wall in enumerate(random.uniform(1, 3, rounds).tolist())
    }
    parts = parts_of(samples, scale)
    assert parts.unexplained_seconds == pytest.approx(unexplained(samples, scale), abs=1e-12)


def test_compute_alone_is_a_step_times_the_batches_and_interference_what_the_steps_took_longer() -> None:
    parts = parts_of({0: sample(1.0, stall=0.3, compute=0.6, compute_alone=0.05)}, WHOLE)
    assert parts.compute_alone_seconds == pytest.approx(0.4)
    assert parts.interference_seconds == pytest.approx(0.2)
    assert parts.stall_seconds == pytest.approx(0.3)
    assert parts.unexplained_seconds == pytest.approx(0.1 - 8e-5)


def test_scaled_to_four_times_the_records_the_first_batch_counts_once() -> None:
    scale = EpochScale(records=2048, measured=512, batch_size=64)
    each = 0.1
    assert scale.epoch_seconds(Split(5.0, 7 * each)) == pytest.approx(5.0 + 31 * each)


def test_an_epoch_of_other_records_is_scaled_by_its_own_number_of_them() -> None:
    scale = EpochScale(records=2048, measured=512, batch_size=64)
    half, all_of_it = (
        make_sample(batches=batches, samples=64 * batches, **dict.fromkeys(PARTS, Split(0.5, 0.1 * (batches - 1))))
        for batches in (4, 8)
    )
    assert etl_alone_seconds({0: half}, scale) == pytest.approx(etl_alone_seconds({0: all_of_it}, scale))
    assert host_wait_seconds({0: half}, scale) == pytest.approx(host_wait_seconds({0: all_of_it}, scale))
    one, other = (parts_of({0: each}, scale) for each in (half, all_of_it))
    assert one.wall_seconds == pytest.approx(0.5 + 31 * 0.1)
    assert vars(one) == pytest.approx(vars(other))
    assert ratios_of({RAW: {0: half}, AHEAD: {0: all_of_it}}, AHEAD, scale)[RAW].estimate == pytest.approx(1.0)


def test_loading_alone_without_an_epoch_is_of_the_selected_records() -> None:
    scale = EpochScale(records=2048, measured=512, batch_size=64)
    assert etl_alone_seconds({0: LoadingSample(Split(0.5, 0.7), 0)}, scale) == pytest.approx(0.5 + 31 * 0.1)


def test_a_source_smaller_than_a_batch_takes_the_time_that_was_measured() -> None:
    scale = EpochScale(records=10, measured=10, batch_size=32)
    parts = parts_of(
        {
            0: make_sample(
                samples=10,
                wall=Split(1.0, 0.0),
                stall=Split(0.3, 0.0),
                compute=Split(0.7, 0.0),
                compute_alone=0.7,
                harness=0.0,
            )
        },
        scale,
    )
    assert (parts.wall_seconds, parts.compute_alone_seconds, parts.interference_seconds) == (1.0, 0.7, 0.0)


def test_a_part_of_a_batch_that_was_measured_is_scaled_by_its_records() -> None:
    scale = EpochScale(records=1000, measured=10, batch_size=32)
    assert scale.epoch_seconds(Split(0.02, 0.0)) == pytest.approx(2.0)
    assert 0.02 * scale.batches == pytest.approx(2.0)


def test_a_partial_last_batch_changes_nothing_in_a_completely_measured_epoch() -> None:
    assert EpochScale(records=100, measured=100, batch_size=64).epoch_seconds(Split(0.5, 0.2)) == pytest.approx(0.7)


def test_ratios_are_those_of_the_walls_and_of_rounds_that_all_have() -> None:
    random = np.random.default_rng(0)
    walls = {RAW: 2.0 * random.uniform(0.9, 1.1, 9), AHEAD: random.uniform(0.9, 1.1, 9)}
    samples = {each: {number: sample(wall) for number, wall in enumerate(taken)} for each, taken in walls.items()}
    ratio = ratios_of(samples, AHEAD, WHOLE)[RAW]
    expected = parts_of(samples[RAW], WHOLE).wall_seconds / parts_of(samples[AHEAD], WHOLE).wall_seconds
    assert (ratio.count, ratio.estimate) == (9, pytest.approx(expected))
    assert ratio.excludes_one
    del samples[RAW][3], samples[AHEAD][5]
    assert ratios_of(samples, AHEAD, WHOLE)[RAW].count == 7
    assert ratios_of({RAW: {0: sample(1.0)}, AHEAD: {1: sample(1.0)}}, AHEAD, WHOLE) == {}


def test_etl_alone_is_the_median_of_the_rounds_that_have_it() -> None:
    samples = {0: sample(1.0), 1: sample(1.0, etl_alone=Split(0.2, 0.4)), 2: sample(1.0, etl_alone=None)}
    assert etl_alone_seconds(samples, WHOLE) == pytest.approx(0.8)


def test_the_cost_of_a_store_is_scaled_to_the_whole_source_from_its_own_number_of_records() -> None:
    assert presaving_of(WrittenStore(2.0, 1000, 500), EpochScale(2000, 500, 50)) == Presaving(8.0, 4000)
    assert presaving_of(WrittenStore(2.0, 1000, 2000), EpochScale(2000, 500, 50)) == Presaving(2.0, 1000)


def test_a_round_is_reported_as_it_was_measured() -> None:
    taken = sample(1.0, stall=0.3, compute=0.6, compute_alone=0.05, etl_alone=None)
    metrics = round_metrics(3, taken, SamplePlace(position=2, started_at=1.5e9))
    assert (metrics.position, metrics.started_at) == (2, 1.5e9)
    assert (metrics.speed_probe_seconds, metrics.memory_probe_seconds) == (0.003, 0.05)
    assert (metrics.round, metrics.wall_seconds, metrics.etl_alone_seconds) == (3, 1.0, None)
    assert (metrics.compute_seconds, metrics.stall_seconds) == pytest.approx((0.6, 0.3))
    assert metrics.compute_alone_seconds == pytest.approx(0.4)


def test_host_wait_is_scaled_as_the_stall_is_which_it_is_without_a_device() -> None:
    scale = EpochScale(records=2048, measured=512, batch_size=64)
    samples = {number: sample(wall, stall=wall / 3) for number, wall in enumerate((1.0, 1.5, 9.0, 2.0, 1.2))}
    assert host_wait_seconds(samples, scale) == parts_of(samples, scale).stall_seconds
    ahead = {number: sample(1.0, host_wait=Split(0.5, 0.7)) for number in samples}
    assert host_wait_seconds(ahead, scale) == pytest.approx(0.5 + 31 * 0.1)


def test_noise_has_the_lowest_and_the_highest_cpu_frequency() -> None:
    def noise(*frequencies: list[float]) -> Noise:
        samples = {number: sample(1.0, frequencies=each) for number, each in enumerate(frequencies)}
        measured: Any = SimpleNamespace(samples={"raw": samples}, retaken=["raw: steal"], disturbed=[])
        return noise_of(measured)

    assert noise([2000.0, 2450.0], [1800]) == Noise([1800.0, 2450.0], ["raw: steal"], [])
    assert noise([]) == Noise([], ["raw: steal"], [])


def test_stalls_of_all_rounds_are_pooled_without_the_first_of_each_epoch() -> None:
    rounds = {0: make_sample(stalls=[[9.0, 0.1], [9.0, 0.2]]), 1: make_sample(stalls=[[9.0, 0.3, 0.4]])}
    tails = stall_tails_of(rounds)
    assert (tails.median, tails.largest) == pytest.approx((0.25, 0.4))
    assert 0.39 < tails.p99 < 0.4
    assert stall_tails_of({0: make_sample(stalls=[[9.0]])}).largest == 9.0  # there is no other


# Of a wait of 10 s, 2.5 s were for data.
A_QUARTER = WaitTimes(waited=10.0, loop_busy=7.5, loaders_busy=0.0, loaders=0, pressure=None)


@pytest.mark.parametrize("rounds", [1, 7])
def test_what_is_lost_adds_up(rounds: int) -> None:
    random = np.random.default_rng(rounds)
    samples = {
        number: sample(
            wall,
            wall * random.uniform(0.1, 0.4),
            wall * random.uniform(0.3, 0.5),
            loading_waits=replace(A_QUARTER, loop_busy=random.uniform(5, 10)),
            transfer=Split(0.01, wall * random.uniform(0.01, 0.1)),
        )
        for number, wall in enumerate(random.uniform(1, 3, rounds).tolist())
    }
    scale = EpochScale(2000, 512, 64)
    result = replace(photographs().strategies[0], parts=parts_of(samples, scale), losses=losses_of(samples, scale))
    losses, parts = result.losses, result.parts
    assert losses.storage_seconds
    assert losses.cpu_seconds
    assert losses.transfer_seconds
    assert losses.start_up_seconds + losses.storage_seconds + losses.cpu_seconds + losses.transfer_seconds + (
        parts.interference_seconds + parts.harness_seconds + parts.unexplained_seconds
    ) == pytest.approx(losses.lost_seconds)
    # Compute alone includes the copies of its batches.
    computing = parts.compute_alone_seconds - losses.transfer_seconds
    assert losses.lost_seconds == pytest.approx(parts.wall_seconds - computing)


def test_storage_is_its_share_of_the_stalls_after_the_first_batch() -> None:
    waited = {0: sample(1.0, stall=0.4, host_wait=Split(0.1, 0.6), loading_waits=A_QUARTER)}
    found = losses_of(waited, WHOLE)
    assert found == Losses(0.1, pytest.approx(0.075), 0.0, "cpu-time")


def test_storage_is_unknown_if_it_is_in_one_round() -> None:
    losses = losses_of({0: sample(1.0, loading_waits=A_QUARTER), 1: sample(1.0, loading_waits=None)}, WHOLE)
    assert (losses.storage_seconds, losses.storage_method) == (None, None)
    assert replace(photographs().strategies[0], losses=losses).losses.cpu_seconds is None


def test_the_transfer_is_unknown_if_a_step_of_the_user_copies_its_batches() -> None:
    losses = losses_of({0: sample(1.0, transfer=None)}, WHOLE)
    assert losses.transfer_seconds is None
    result = replace(photographs().strategies[0], losses=losses)
    assert result.losses.lost_seconds == result.parts.wall_seconds - result.parts.compute_alone_seconds


def test_pressure_is_named_if_a_round_needed_it() -> None:
    rounds = {
        0: sample(1.0, loading_waits=A_QUARTER),
        1: sample(1.0, loading_waits=replace(A_QUARTER, loaders=2, pressure=1.0)),
    }
    assert losses_of(rounds, WHOLE).storage_method == "psi"


def test_an_epoch_that_never_waited_loses_nothing_to_storage() -> None:
    never = replace(A_QUARTER, waited=0.0, loop_busy=0.0)
    assert losses_of({0: sample(1.0, loading_waits=never)}, WHOLE).storage_seconds == 0.0


def test_the_start_up_of_an_epoch_of_few_batches_is_no_longer_than_its_stall() -> None:
    # A loader that does not end gave 8 batches, 4 of them in its start-up; the source has records for 2.
    scale = EpochScale(records=128, measured=128, batch_size=64)
    endless = {0: make_sample(batches=8, samples=512, start_up=4, stall=Split(0.3, 0.1))}
    assert parts_of(endless, scale).stall_seconds == pytest.approx(0.1)
    assert losses_of(endless, scale).start_up_seconds == pytest.approx(0.075)
    assert losses_of({0: make_sample()}, scale).start_up_seconds == 0.01
