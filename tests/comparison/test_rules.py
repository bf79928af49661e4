"""The eight rules of fairness: evidence that holds, and for each rule evidence that breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etl.comparison.candidates import Threads
from etl.comparison.report import Check, Parts
from etl.comparison.rules import RULES, Conditions, Evidence, check_rules
from etl.comparison.samples import CheckedEpoch, Sample, WrittenStore
from etl.measuring.clock import Split
from tests.comparison_workloads import make_sample

CONDITIONS = Conditions(
    affinity=[0, 1],  # two CPUs for all
    memory_nbytes=10**9,
    cache="warm",
    simulated_seconds=None,
    waits_for_steps=False,
    rounds=6,
    unchecked=(),
)
PARTS = Parts(2.0, 1.0, 0.2, 0.79, 0.001)


def sample(**metrics: Any) -> Sample:
    """Return a sample of a round in which nothing went wrong."""
    return make_sample(**{"wall": Split(0.5, 1.5), "cpu_seconds": 3.0, "torch_threads": 1, **metrics})


def evidence(is_presaved: bool = False, **check: Any) -> Evidence:
    seen = CheckedEpoch(
        digests=["aa", "bb", "cc"],
        records=["a0", "a1", "b0", "b1", "c0"],
        samples=100,
        score=2.25,
        weights="5eed",
        pages_touched=4000,
        pages_absent=0,
        peak_memory=5 * 10**8,
    )
    return Evidence(
        is_presaved=is_presaved,
        threads=Threads(1, 1),
        check=replace(seen, **check),
        samples={number: sample() for number in range(6)},
        parts=PARTS,
        writing=WrittenStore(1.0, 1000, 100) if is_presaved else None,
    )


def checks(other: Evidence, conditions: Conditions = CONDITIONS) -> dict[str, Check]:
    """Return the checks of a sound strategy and `other`, by rule."""
    return {each.rule: each for each in check_rules({"raw": evidence(), "other": other}, conditions)}


def with_round(number: int, **metrics: Any) -> Evidence:
    """Return evidence in which one round differs."""
    sound = evidence()
    return replace(sound, samples={**sound.samples, number: sample(**metrics)})


def assert_broken(rule: str, reason: str, found: dict[str, Check]) -> None:
    """Assert that `other` broke `rule` for `reason`, and that all other rules held."""
    assert found[rule].held is False
    assert list(found[rule].broken_by) == ["other"]
    assert reason in found[rule].broken_by["other"]
    assert [each.rule for each in found.values() if each.held is not True] == [rule]


def test_sound_evidence_holds_all_eight_rules_and_each_has_evidence() -> None:
    found = checks(evidence(is_presaved=True))
    assert list(found) == list(RULES)
    assert len(RULES) == 8
    for rule, check in found.items():
        assert check.held is True
        assert check.broken_by == {}
        assert check.title == RULES[rule]
        assert check.evidence


def test_samples_are_broken_by_a_batch_with_other_bytes() -> None:
    found = checks(evidence(digests=["aa", "b0", "c0"], records=["a0", "a1", "b0", "bb", "cc"]))
    reason = "2 of 3 batches differ from those of raw, first batch 1; 2 of 100 records are not in raw's epoch"
    assert_broken("samples", reason, found)


def test_samples_are_broken_by_another_order_of_the_same_records() -> None:
    found = checks(evidence(digests=["ab", "ba", "cc"], records=["b0", "a1", "a0", "b1", "c0"]))
    assert_broken("samples", "the same records as raw, in a different order", found)


def test_samples_are_broken_by_an_epoch_with_fewer_batches() -> None:
    assert_broken("samples", "2 batches; raw has 3", checks(evidence(digests=["aa", "bb"])))


def test_samples_are_broken_by_a_timed_epoch_with_another_number_of_them() -> None:
    found = checks(with_round(2, samples=99))
    assert_broken("samples", "99 samples in a timed epoch instead of 100", found)


def test_compute_is_broken_by_other_initial_weights() -> None:
    assert_broken("compute", "its initial weights are not those of raw", checks(evidence(weights="bad")))


def test_compute_is_broken_by_a_loss_that_differs_in_its_last_bit() -> None:
    assert_broken("compute", "its loss is 2.25", checks(evidence(score=2.25 + 2**-51)))


def test_a_device_may_add_in_another_order() -> None:
    on_device = evidence(score=2.26)
    on_device = replace(on_device, samples={0: sample(device="cuda:0")})
    assert checks(on_device)["compute"].held is True
    assert "within 1%" in checks(on_device)["compute"].evidence
    assert_broken("compute", "its loss is 3.0", checks(replace(on_device, check=replace(on_device.check, score=3.0))))


def test_losses_that_all_diverged_are_equal() -> None:
    diverged = evidence(score=float("nan"))
    found = check_rules({"raw": diverged, "other": diverged}, CONDITIONS)
    assert all(each.held for each in found)
    assert_broken("compute", "its loss is nan, but the loss of raw is 2.25", checks(diverged))


def test_simulated_compute_is_the_same_wait_for_all() -> None:
    found = checks(evidence(score=None, weights=""), replace(CONDITIONS, simulated_seconds=0.02))
    assert found["compute"].held is True
    assert "20 ms" in found["compute"].evidence


def test_resources_are_broken_by_other_cpus() -> None:
    found = checks(with_round(3, affinity=[0, 1, 2]))
    assert_broken("resources", "it ran on CPUs [0, 1, 2] in round 3", found)


def test_resources_are_broken_by_another_number_of_compute_threads() -> None:
    assert_broken("resources", "it computed with 2 threads in round 1", checks(with_round(1, torch_threads=2)))


def test_resources_are_broken_by_more_cpu_time_than_there_was() -> None:
    assert_broken("resources", "it used 2.50 CPUs in round 4", checks(with_round(4, cpu_seconds=5.0)))


def test_resources_are_broken_by_more_memory_than_allowed() -> None:
    assert_broken("resources", "it used 1,500 MB", checks(evidence(peak_memory=15 * 10**8)))


def test_all_cpus_busy_all_the_time_break_nothing() -> None:
    assert checks(with_round(0, cpu_seconds=4.1))["resources"].held is True


@pytest.mark.parametrize(("cache", "where"), [("warm", "in"), ("cold", "out of")])
def test_the_cache_is_broken_by_pages_in_the_wrong_state(cache: str, where: str) -> None:
    found = checks(with_round(5, misplaced_pages=1200), replace(CONDITIONS, cache=cache))
    assert_broken("cache", f"1,200 pages of its files were not {where} the page cache", found)


def test_files_that_the_kernel_does_not_report_on_are_in_the_evidence() -> None:
    assert "does not report" not in checks(evidence())["cache"].evidence
    found = checks(with_round(0, unreported_files=40))["cache"]
    assert found.held is True
    assert found.evidence.endswith("mincore, which does not report on 40 files that belong to another user")


def test_the_cost_is_broken_by_a_store_whose_writing_was_not_measured() -> None:
    unpaid = replace(evidence(is_presaved=True), writing=None)
    found = checks(unpaid)
    assert_broken("cost", "the cost of writing its store was not measured", found)
    assert "no strategy needs a store" not in found["cost"].evidence


def test_without_a_store_there_is_nothing_to_pay_for() -> None:
    assert checks(evidence())["cost"].evidence == "no strategy needs a store"


def test_noise_is_not_handled_in_too_few_rounds_and_no_strategy_is_disqualified() -> None:
    found = checks(evidence(), replace(CONDITIONS, rounds=4))
    assert found["noise"].held is False
    assert found["noise"].broken_by == {}
    assert "an interval needs 6 rounds, so no difference is claimed" in found["noise"].evidence


def test_loaded_is_broken_by_pages_that_were_not_in_memory_when_compute_began() -> None:
    found = checks(evidence(pages_absent=3))
    assert_broken("loaded", "3 pages of its batches were not in memory when compute began", found)


@pytest.mark.parametrize("unexplained", [0.03, -0.03])
def test_the_sum_is_broken_by_more_than_a_hundredth_unexplained(unexplained: float) -> None:
    found = checks(replace(evidence(), parts=replace(PARTS, stall_seconds=0.799 - unexplained)))
    assert_broken("sum", f"{unexplained / 2:.2%} of its wall time is unexplained", found)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_not_to_be_checked_neither_holds_nor_disqualifies(rule: str) -> None:
    hopeless = replace(
        with_round(0, samples=1, affinity=[7], misplaced_pages=9),
        check=evidence(is_presaved=True, digests=[], weights="", pages_absent=1).check,
        is_presaved=True,
        parts=replace(PARTS, wall_seconds=3.0),
    )
    found = checks(hopeless, replace(CONDITIONS, rounds=1, unchecked=(rule,)))
    assert found[rule].held is None
    assert found[rule].broken_by == {}
    assert [each.rule for each in found.values() if each.held is not False] == [rule]
