"""Predictions for other CPUs, compute and storage: known costs, the limits, and a real comparison."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
from etl.comparison.judge.costs import measured_costs
from etl.comparison.judge.report import ScenarioResult
from etl.comparison.judge.what_if import (
    LoadingCosts,
    adjusted,
    changed,
    contention_of,
    extrapolated,
    fewest_cpus,
    outcome,
    unknown_reason,
    why_never_used,
)
from etl.comparison.request.candidates import CpuSplit
from etl.comparison.request.scenario import WhatIf
from etl.comparison.request.settings import Settings
from etl.comparison.worker.profile import profile_raw_pipeline
from etl.measuring.clock import Split
from etl.measuring.sample import CachedEpoch
from tests.comparison_workloads import make_measurements, make_sample, make_workload

BATCHES = 100


def make_costs(load: float, compute: float, ahead: int = 0, **more: Any) -> LoadingCosts:
    """Return costs of a strategy that loads a batch in `load` seconds, with `ahead` threads or in the training loop.

    Compute runs on a device. With several threads, loading is as many times faster as there are threads.
    """
    one_thread = more.setdefault("one_thread_seconds", load * max(1, ahead))
    costs = LoadingCosts(
        contention=contention_of(ahead, load, one_thread),
        batches=BATCHES,
        cpus=2,
        is_ahead=ahead > 0,
        threads=CpuSplit(1, ahead),
        load_seconds=load,
        start_seconds=0.0,
        one_thread_seconds=one_thread,
        cpu_seconds=load * max(1, ahead),
        disk_seconds=0.0,
        nbytes=1e6,
        compute_seconds={1: compute},
        is_on_device=True,
        waits_for_steps=False,
    )
    return replace(costs, **more)


def epoch_of(costs: LoadingCosts, scenario: str) -> float:
    """Return the predicted seconds of an epoch per batch, nearly: the first batch is not hidden."""
    found = WhatIf.parse(scenario)
    return outcome(changed(costs, found), found.cpus).wall_seconds / BATCHES


def test_a_scenario_has_any_of_its_keys() -> None:
    text = "cpus=8, compute=5ms, disk=200MB/s, cache=50%"
    assert WhatIf.parse(text) == WhatIf("cpus=8,compute=5ms,disk=200MB/s,cache=50%", 8, 0.005, None, 2e8, 0.5)
    assert WhatIf.parse("compute=2.5x") == WhatIf("compute=2.5x", compute_factor=2.5)
    assert WhatIf.parse("cache=100%").cached_share == 1.0


WRONG = [
    ("", "--what-if takes any of cpus=8, compute=5ms, compute=2x, disk=200MB/s, cache=50%, with commas"),
    ("8", "not '8'"),
    ("gpus=2", "not 'gpus=2'"),
    ("cpus=", "not 'cpus='"),
    ("cpus=1,cpus=2", "cpus is given twice; give --what-if twice for two scenarios"),
    ("cpus=0", "--what-if cpus must be a whole number of at least 1, not 0"),
    ("cpus=two", "--what-if cpus=two: give a whole number of CPUs, such as cpus=8"),
    ("compute=fast", "--what-if compute (or a factor such as 2x) must be a time such as 60s, 20ms or 2min, not 'fast'"),
    ("compute=0ms", "--what-if compute=0ms: it must be above 0"),
    ("compute=0x", "--what-if compute=0x: it must be above 0"),
    ("disk=200MB", "--what-if disk=200MB: give bytes per second, such as disk=200MB/s"),
    ("disk=fast/s", "--what-if disk=fast/s: a size is a number with B, KB, MB, GB"),
    ("cache=0.5", "--what-if cache=0.5: give a share from 0% to 100%, such as cache=50%"),
    ("cache=101%", "--what-if cache=101%: give a share from 0% to 100%"),
    ("disk=1GB/s", "all files are in the page cache, so the disk has no effect; add cache=50%"),
    ("cache=50%", "its speed is unknown; add disk=200MB/s, or compare with --cache cold"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_scenario_is_named_with_what_there_is(text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        Settings("photographs", what_if=(text,))
    assert message in str(raised.value)


def test_a_cold_comparison_knows_its_disk() -> None:
    settings = Settings("photographs", cache="cold", what_if=("cache=50%", "disk=1GB/s"))
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_the_longer_of_loading_and_compute_bounds_a_strategy_beside_a_device() -> None:
    for costs in (make_costs(0.01, 0.02), make_costs(0.01, 0.02, ahead=2)):
        assert epoch_of(costs, "compute=1x") == pytest.approx(0.02, rel=0.01)
        assert epoch_of(costs, "compute=80ms") == pytest.approx(0.08, rel=0.01)
        assert epoch_of(costs, "compute=1ms") == pytest.approx(0.01, rel=0.01)
        assert epoch_of(costs, "compute=0.05x") == pytest.approx(0.01, rel=0.01)


def test_a_plain_loop_that_waits_for_its_steps_takes_the_sum() -> None:
    found = outcome(make_costs(0.01, 0.02, waits_for_steps=True))
    assert found.wall_seconds == pytest.approx(BATCHES * 0.03)
    assert found.stall_seconds == pytest.approx(BATCHES * 0.01)
    assert found.accelerator_utilisation == pytest.approx(2 / 3)


def test_more_cpus_help_only_a_strategy_that_loads_ahead_and_only_until_compute_is_the_limit() -> None:
    plain, ahead = make_costs(0.08, 0.01), make_costs(0.04, 0.01, ahead=2)
    assert [epoch_of(plain, f"cpus={each}") for each in (1, 2, 8)] == pytest.approx([0.08] * 3, rel=0.01)
    walls = [epoch_of(ahead, f"cpus={each}") for each in (1, 2, 4, 8, 16)]
    assert walls == pytest.approx([0.08, 0.04, 0.02, 0.01, 0.01], rel=0.02)


def test_a_source_that_waits_is_loaded_by_one_cpu_as_fast_as_its_one_thread_waits() -> None:
    waits = make_costs(0.04, 0.01, ahead=2, cpu_seconds=0.001)
    assert [epoch_of(waits, f"cpus={each}") for each in (1, 2, 4)] == pytest.approx([0.08, 0.04, 0.02], rel=0.02)


def test_what_threads_do_one_at_a_time_bounds_any_number_of_cpus() -> None:
    locked = make_costs(0.08, 0.01, ahead=2, one_thread_seconds=0.08)
    assert locked.contention == pytest.approx(1.0)
    assert epoch_of(locked, "cpus=64") == pytest.approx(0.08, rel=0.02)
    assert fewest_cpus(locked) is None
    assert why_never_used(locked) == "100% of loading gets no faster with more threads"
    assert why_never_used(replace(locked, contention=2.0)) == "loading is slower with more threads"


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("is_on_device", [True, False])
@pytest.mark.parametrize("contention", [0.7, 1.0, 1.5])
def test_no_more_cpus_ever_take_longer(ahead: int, is_on_device: bool, contention: float) -> None:
    costs = make_costs(
        0.05,
        0.04,
        ahead,
        is_on_device=is_on_device,
        compute_seconds={1: 0.04, 2: 0.025},
        one_thread_seconds=0.05 * max(1.0, ahead / contention),
        disk_seconds=0.004,
    )
    walls = [outcome(costs, cpus).wall_seconds for cpus in range(1, 40)]
    assert walls == sorted(walls, reverse=True)


def test_the_disk_is_waited_for_by_a_plain_loop_and_beside_loading_by_threads() -> None:
    plain, ahead = make_costs(0.01, 0.001), make_costs(0.01, 0.001, ahead=2)
    text = "disk=100MB/s,cache=50%"  # 5 ms for half of a megabyte
    assert epoch_of(plain, text) == pytest.approx(0.015, rel=0.01)
    assert epoch_of(ahead, text) == pytest.approx(0.0125, rel=0.01)
    assert epoch_of(ahead, "disk=10MB/s,cache=50%,cpus=64") == pytest.approx(0.05, rel=0.02)
    assert epoch_of(ahead, "disk=10MB/s,cache=100%") == pytest.approx(epoch_of(ahead, "cpus=2"))


def test_a_cold_comparison_scales_the_disk_that_it_measured() -> None:
    cold = make_costs(0.01, 0.001, disk_seconds=0.02)
    assert epoch_of(cold, "cache=50%") == pytest.approx(0.02, rel=0.01)
    assert epoch_of(cold, "cache=100%") == pytest.approx(0.01, rel=0.01)
    assert epoch_of(cold, "disk=25MB/s") == pytest.approx(0.05, rel=0.01)


def test_cpus_for_90_percent_are_the_fewest_that_hide_loading() -> None:
    ahead = make_costs(0.04, 0.0201, ahead=2)
    fewest = fewest_cpus(ahead)
    assert fewest == 4
    assert outcome(ahead, fewest).accelerator_utilisation >= 0.9 > outcome(ahead, fewest - 1).accelerator_utilisation
    assert fewest_cpus(make_costs(0.001, 0.1)) == 1


def test_no_number_of_cpus_is_enough_if_the_loop_loads_or_the_disk_is_slow() -> None:
    plain, slow = make_costs(0.04, 0.02), make_costs(0.04, 0.02, ahead=2, disk_seconds=0.03)
    assert [fewest_cpus(each) for each in (plain, slow)] == [None, None]
    assert why_never_used(plain) == "the training loop loads in one thread"
    assert why_never_used(slow) == "the disk is too slow"


def test_compute_on_the_cpus_follows_the_law_of_amdahl_through_what_was_measured() -> None:
    costs = make_costs(0.01, 0.1, is_on_device=False, compute_seconds={1: 0.1, 2: 0.06})
    assert [costs.computing(each) for each in (1, 2)] == [0.1, 0.06]
    assert costs.computing(4) == pytest.approx(0.04)
    assert make_costs(0.0, 0.1, is_on_device=False).computing(2) == pytest.approx(0.055)
    slower = make_costs(0.0, 0.1, is_on_device=False, compute_seconds={1: 0.1, 2: 0.12})
    assert slower.computing(4) == pytest.approx(0.1)


def test_beside_compute_on_the_same_cpus_loading_is_as_much_slower_as_the_profile_has_seen() -> None:
    shared = make_costs(
        0.02, 0.05, ahead=1, cpus=1, is_on_device=False, shared=(2.0, 2.0), cpu_seconds=0.02, one_thread_seconds=0.02
    )
    assert epoch_of(shared, "cpus=1") == pytest.approx(0.07, rel=0.01)
    assert epoch_of(shared, "cpus=2") == pytest.approx(0.05 * 0.55 * 1.2, rel=0.4)


def test_on_one_cpu_compute_and_loading_lose_what_was_measured_there() -> None:
    costs = make_costs(0.02, 0.05, ahead=1, is_on_device=False, cpu_seconds=0.02, on_one_cpu=(2.5, 2.5))
    assert epoch_of(costs, "cpus=1") == pytest.approx(0.05 + 2.5 * 0.02 * 0.6, rel=0.01)


def test_training_with_more_cpus_is_unknown_if_compute_was_measured_with_one_number_of_threads() -> None:
    one, two = (
        make_costs(0.01, 0.1, is_on_device=False, compute_seconds=each) for each in ({1: 0.1}, {1: 0.1, 2: 0.06})
    )
    assert unknown_reason(one, 4) == "compute with more than 1 thread was not measured"
    assert [unknown_reason(one, each) for each in (1, 2, None)] == [""] * 3
    assert unknown_reason(two, 4) == unknown_reason(make_costs(0.01, 0.1), 4) == ""


def test_the_page_cache_is_read_apart_from_the_disk(tmp_path: Path) -> None:
    workload = make_workload(tmp_path, strategies=("raw",), cache="cold", what_if=("cache=100%",))
    (raw,) = workload.candidates()
    sample = make_sample(etl_cpu_seconds=0.05, cached_alone=CachedEpoch(Split(0.004, 0.036), 0.03))
    costs = measured_costs(make_measurements(workload, {raw: {0: sample}}), raw)
    assert isinstance(costs, LoadingCosts)
    found = (costs.load_seconds, costs.disk_seconds, costs.cpu_seconds)
    assert found == pytest.approx((0.004, 0.006, 0.003))


def test_the_model_is_adjusted_to_the_measured_time_only_if_loading_decides_it() -> None:
    loads, computes = make_costs(0.04, 0.01), make_costs(0.01, 0.04)
    assert outcome(adjusted(loads, 4.4)).wall_seconds == pytest.approx(4.4, rel=1e-3)
    assert adjusted(computes, 4.4) == computes
    assert adjusted(loads, 40.0).adjustment == pytest.approx(1.25)
    both = make_costs(0.04, 0.039)
    assert adjusted(both, 4.4) == both
    assert adjusted(make_costs(0.04, 0.034), 3.0).adjustment == pytest.approx(0.034 / 0.04, rel=0.02)


def test_a_prediction_is_extrapolated_beyond_what_was_measured() -> None:
    costs = make_costs(0.01, 0.02, ahead=2)
    for text in ("cpus=2", "cpus=1", "compute=2ms", "compute=4x", "compute=80ms"):
        assert extrapolated(costs, WhatIf.parse(text)) == []
    assert extrapolated(costs, WhatIf.parse("cpus=3")) == ["more CPUs than the 2 of this comparison"]
    assert extrapolated(costs, WhatIf.parse("compute=5x")) == ["compute beyond 0.1 to 4 times the measured 20 ms"]
    (warm,) = extrapolated(costs, WhatIf.parse("disk=1GB/s,cache=0%"))
    assert warm == "a disk, which this comparison did not read"
    cold = replace(costs, disk_seconds=0.01)  # 100 MB/s
    assert extrapolated(cold, WhatIf.parse("cache=50%,disk=100MB/s")) == []
    assert extrapolated(cold, WhatIf.parse("disk=200MB/s")) == ["a disk of another speed than the measured 100 MB/s"]


def mine(source: Any, batch_size: int) -> list[Any]:
    """Return the batches of an epoch, as a user's loader."""
    rows = [source[index]["features"] for index in range(len(source))]
    return [np.stack(rows[at : at + batch_size]) for at in range(0, len(rows), batch_size)]


@pytest.mark.parametrize(("scenarios", "is_measured"), [(("cpus=1",), True), (("cpus=4",), False), ((), False)])
def test_training_on_one_cpu_is_profiled_if_a_scenario_has_one(
    scenarios: tuple[str, ...], is_measured: bool, tmp_path: Path
) -> None:
    before = os.sched_getaffinity(0)
    workload = make_workload(tmp_path, what_if=scenarios, budget_seconds=1.0)
    profile = profile_raw_pipeline(workload, [CpuSplit(2, 1)], [2])
    assert os.sched_getaffinity(0) == before
    assert (profile.on_one_cpu is not None) == is_measured
    if profile.on_one_cpu is not None:
        assert (profile.on_one_cpu.compute_threads, profile.on_one_cpu.loading_threads) == (1, 1)
        assert set(profile.compute_seconds) == {"1", "2"}


@pytest.mark.slow
def test_a_cold_comparison_measures_the_page_cache(digits: Path) -> None:
    cold = etl.compare(
        str(digits),
        ["raw", "async-presaved"],
        compute="simulated:1ms",
        cache="cold",
        what_if=("cache=100%",),
        records=160,
        rounds=1,
        budget="2s",
    )
    assert all(each.wall_seconds for each in cold.scenarios[0].strategies)


@pytest.mark.slow
def test_a_comparison_predicts_every_strategy_of_its_own_in_every_scenario(digits: Path) -> None:
    scenarios = ("cpus=8,compute=1ms", "cpus=1", "disk=10MB/s,cache=50%")
    report = etl.compare(
        str(digits),
        ["raw", "async-presaved", mine],
        compute="simulated:2ms",
        what_if=scenarios,
        records=160,
        rounds=1,
        budget="2s",
    )
    assert [each.what_if for each in report.scenarios] == list(scenarios)
    for scenario in report.scenarios:
        *own, of_the_user = scenario.strategies
        assert [each.strategy for each in own] == ["raw", "async-presaved"]
        assert of_the_user == ScenarioResult("mine", None, None, None, None, "its loader is unknown")
        for each in own:
            assert each.wall_seconds is not None
            assert each.stall_seconds is not None
            assert 0 <= each.stall_seconds < each.wall_seconds
            assert 0 < (each.accelerator_utilisation or 0) <= 1
            assert (each.cpus_for_utilisation is None) == bool(each.reason)
    assert [bool(each.extrapolated) for each in report.scenarios[0].strategies] == [True, True, False]
    assert not any(each.extrapolated for each in report.scenarios[1].strategies)
    assert json.loads(report.to_json())["scenarios"][1]["what_if"] == "cpus=1"
    assert "What if cpus=8,compute=1ms: predicted" in str(report)
