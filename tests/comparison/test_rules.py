"""The rules of fairness: evidence that holds, and for each rule evidence that breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from etl.comparison.judge.report import Check, Parts
from etl.comparison.judge.rules import RULES, Evidence, FairnessConditions, check_rules
from etl.comparison.judge.sameness import Sameness
from etl.comparison.request.answers import CheckedEpoch, WrittenStore
from etl.comparison.request.candidates import CpuSplit
from etl.comparison.request.epoch_content import EpochContent
from etl.comparison.request.settings import Settings
from etl.measuring.clock import Split
from etl.measuring.sample import Sample
from tests.comparison_workloads import make_sample

CONDITIONS = FairnessConditions(Settings("photographs", batch_size=40), [0, 1], memory_nbytes=10**9, rounds=6)
CONTENT = EpochContent(["aa", "bb", "cc"], ["a0", "a1", "b0", "b1", "c0"], [("float32", (4,))], [40, 40, 20], "")
PARTS = Parts(2.0, 1.0, 0.2, 0.79, 0.001)
# Records of a shuffled epoch of 100 are about 33 from their place in the source.
IDENTICAL = Sameness("identical", displacement=33.0, is_shuffled=True)
REORDERED = replace(IDENTICAL, level="same records", reason="its 5 records come in another order than those of raw")
CLOSE = replace(REORDERED, level="close", reason="the bytes of 5 records differ", largest_distance=0.0123)
SAME_AMOUNT = Sameness("same amount", "its records have no partners")
DIFFERENT = Sameness(None, "its records are uint8 (4) and those of raw float32 (4)")
RANDOM = "record 3 of augmented differs from one reading to the next, in 'image'"


def asked(**settings: Any) -> FairnessConditions:
    """Return conditions with other settings."""
    return replace(CONDITIONS, settings=replace(CONDITIONS.settings, **settings))


def sample(**metrics: Any) -> Sample:
    """Return a sample of a round in which nothing went wrong."""
    return make_sample(**{"wall": Split(0.5, 1.5), "cpu_seconds": 3.0, "torch_threads": 1, **metrics})


def evidence(
    is_presaved: bool = False, is_foreign: bool = False, sameness: Sameness = IDENTICAL, **check: Any
) -> Evidence:
    """Return evidence in which nothing is wrong, unless `sameness` or a field of its `CheckedEpoch` is given."""
    seen = CheckedEpoch(
        content=replace(CONTENT, digests=["aa", "bb", "cc" if sameness.level == "identical" else "xx"]),
        reshuffles=None,
        score=2.25,
        weights="5eed",
        pages_touched=4000,
        pages_absent=0,
        unread="",
        peak_memory=5 * 10**8,
    )
    return Evidence(
        is_presaved=is_presaved,
        is_foreign=is_foreign,
        shares_python=True,
        sameness=sameness,
        threads=CpuSplit(1, 1),
        check=replace(seen, **check),
        samples={number: sample() for number in range(6)},
        parts=PARTS,
        writing=WrittenStore(1.0, 1000, 100) if is_presaved else None,
    )


def checks(other: Evidence, conditions: FairnessConditions = CONDITIONS) -> dict[str, Check]:
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


def test_sound_evidence_holds_all_rules_and_each_has_evidence() -> None:
    found = checks(evidence(is_presaved=True))
    assert list(found) == list(RULES)
    for rule, check in found.items():
        assert check.held is True
        assert check.broken_by == {}
        assert check.title == RULES[rule]
        assert check.evidence


LARGER = replace(CONTENT, digests=["aa", "bb"], batch_sizes=[50, 50])
OTHER_WEIGHTS, OTHER_PAGES = "its initial weights are not those of raw", "1,200 pages of its files were not"
MISPLACED = with_round(5, misplaced_pages=1200)
UNEXPLAINED, TWICE = (replace(evidence(), parts=replace(PARTS, stall_seconds=stall)) for stall in (0.769, 0.829))


@pytest.mark.parametrize(
    ("rule", "reason", "other"),
    [
        ("samples", "it has batches of 50 records, not 40", evidence(is_foreign=True, content=LARGER)),
        ("samples", DIFFERENT.reason, evidence(is_foreign=True, sameness=DIFFERENT)),
        ("samples", "99 samples in a timed epoch instead of 100", with_round(2, samples=99)),
        (
            "samples",
            "50 samples in a timed epoch instead of 80",
            replace(evidence(), samples={0: sample(batches=2, samples=50)}),
        ),
        ("compute", OTHER_WEIGHTS, evidence(weights="bad")),
        ("compute", OTHER_WEIGHTS, evidence(is_foreign=True, sameness=CLOSE, weights="bad")),
        ("compute", "its loss is 2.25", evidence(score=2.25 + 2**-51)),  # its last bit
        ("resources", "it ran on CPUs [0, 1, 2] in round 3", with_round(3, affinity=[0, 1, 2])),
        ("resources", "it computed with 2 threads in round 1", with_round(1, torch_threads=2)),
        ("resources", "it used 2.50 CPUs in round 4", with_round(4, cpu_seconds=5.0)),
        ("resources", "it used 1,500 MB", evidence(peak_memory=15 * 10**8)),
        ("cache", f"{OTHER_PAGES} in the page cache", MISPLACED),
        ("cost", "the cost of writing its store was not measured", replace(evidence(is_presaved=True), writing=None)),
        ("loaded", "1 page of its batches was not in memory when compute began", evidence(pages_absent=1)),
        ("sum", "1.50% of its wall time is unexplained", UNEXPLAINED),
        ("sum", "-1.50% of its wall time is unexplained", TWICE),
    ],
)
def test_a_rule_is_broken_for_a_reason(rule: str, reason: str, other: Evidence) -> None:
    assert_broken(rule, reason, checks(other))


def test_under_other_conditions_the_same_is_asked_for() -> None:
    assert_broken("cache", f"{OTHER_PAGES} out of the page cache", checks(MISPLACED, asked(cache="cold")))
    random = replace(CONDITIONS, randomness=RANDOM)  # which excuses no other shapes
    assert_broken("samples", DIFFERENT.reason, checks(evidence(sameness=DIFFERENT), random))


@pytest.mark.parametrize("sameness", [REORDERED, CLOSE, SAME_AMOUNT, DIFFERENT], ids=lambda each: str(each.level))
def test_a_strategy_of_this_package_must_load_identical_samples(sameness: Sameness) -> None:
    reason = sameness.reason if sameness.level is None else "the division into batches differs from that of raw"
    assert_broken("samples", reason, checks(evidence(sameness=sameness)))


def test_strategies_of_this_package_must_be_identical_with_each_other_whatever_the_reference_is() -> None:
    mine, raw = evidence(is_foreign=True), evidence(sameness=SAME_AMOUNT)
    saved = evidence(sameness=SAME_AMOUNT, content=replace(CONTENT, digests=["aa", "yy", "cc"]))
    samples = next(each for each in check_rules({"mine": mine, "raw": raw, "saved": saved}, CONDITIONS))
    assert samples.rule == "samples"
    assert samples.broken_by == {"saved": "the division into batches differs from that of raw"}


def test_each_worker_may_end_with_an_incomplete_batch() -> None:
    def sized(*batch_sizes: int, workers: int = 0) -> Evidence:
        content = replace(CONTENT, digests=[str(size) for size in batch_sizes], batch_sizes=list(batch_sizes))
        other = evidence(is_foreign=True, sameness=REORDERED, content=content, workers=workers)
        return replace(other, samples={0: sample(samples=sum(batch_sizes))})

    assert checks(sized(40, 20, 40))["samples"].held
    assert checks(sized(40, 10, 40, 10))["samples"].held
    assert_broken("samples", "2 of its 2 batches have fewer than 40 records", checks(sized(20, 20)))
    found = checks(sized(40, 20, 20, 20))
    assert_broken("samples", "3 of its 4 batches have fewer than 40 records; the last of each worker may", found)
    more_than_cpus = (40, 10) * 4
    assert checks(sized(*more_than_cpus, workers=4))["samples"].held
    assert_broken("samples", "4 of its 8 batches have fewer than 40", checks(sized(*more_than_cpus, workers=3)))


@pytest.mark.parametrize("sameness", [REORDERED, CLOSE, SAME_AMOUNT], ids=lambda each: str(each.level))
def test_a_loader_of_the_user_may_be_on_any_level_and_the_evidence_names_it(sameness: Sameness) -> None:
    found = checks(evidence(is_foreign=True, sameness=sameness))["samples"]
    assert (found.held, found.broken_by) == (True, {})
    assert found.evidence.endswith(f"; other {sameness.describe()}")


@pytest.mark.parametrize("sameness", [REORDERED, CLOSE, SAME_AMOUNT], ids=lambda each: str(each.level))
def test_beside_a_reference_of_the_user_or_random_transforms_a_strategy_of_this_package_may_be_on_any_level(
    sameness: Sameness,
) -> None:
    beside_users = check_rules({"mine": evidence(is_foreign=True), "raw": evidence(sameness=sameness)}, CONDITIONS)
    assert all(each.held for each in beside_users)
    random = checks(evidence(sameness=sameness), replace(CONDITIONS, randomness=RANDOM))
    assert all(each.held for each in random.values())
    assert random["samples"].evidence.endswith(f"; {RANDOM}")


def test_an_unshuffled_loader_among_shuffled_ones_is_disqualified() -> None:
    in_order = replace(REORDERED, displacement=0.0, is_shuffled=False)
    reason = "it does not shuffle, and other strategies do: 0.0 records from their place in the source on average"
    assert_broken("samples", reason, checks(evidence(is_foreign=True, sameness=in_order)))
    of_two_epochs = replace(SAME_AMOUNT, is_shuffled=False)
    reason = "it does not shuffle, and other strategies do: the same order in every epoch"
    assert_broken("samples", reason, checks(evidence(is_foreign=True, sameness=of_two_epochs)))


def test_loaders_that_all_keep_the_order_and_those_of_unknown_order_are_not_disqualified_for_it() -> None:
    in_order = evidence(is_foreign=True, sameness=replace(REORDERED, displacement=0.0, is_shuffled=False))
    found = check_rules({"mine": in_order, "other": in_order}, CONDITIONS)
    assert all(each.held for each in found)
    assert all(each.held for each in checks(evidence(is_foreign=True, sameness=SAME_AMOUNT)).values())


@pytest.mark.parametrize("sameness", [REORDERED, CLOSE, SAME_AMOUNT], ids=lambda each: str(each.level))
def test_losses_are_compared_only_of_identical_samples(sameness: Sameness) -> None:
    assert checks(evidence(is_foreign=True, sameness=sameness, score=9.5))["compute"].held is True
    found = checks(evidence(is_foreign=True, score=9.5))
    assert_broken("compute", "its loss is 9.5, but the loss of raw is 2.25", found)


def test_a_step_of_the_user_has_unknown_weights_and_may_return_no_loss() -> None:
    silent = evidence(score=None, weights=None)
    found = {each.rule: each for each in check_rules({"raw": silent, "other": silent}, CONDITIONS)}
    assert found["compute"].held is True
    assert "it returns no loss" in found["compute"].evidence
    loud = evidence(weights=None)
    found = {each.rule: each for each in check_rules({"raw": loud, "other": loud}, CONDITIONS)}
    assert found["compute"].held is True
    assert "weights" not in found["compute"].evidence
    assert "the loss after the same steps (2.25 for raw)" in found["compute"].evidence


def test_a_device_may_add_in_another_order() -> None:
    on_device = evidence(score=2.26)
    on_device = replace(on_device, samples={0: sample(device="cuda:0")})
    assert checks(on_device)["compute"].held is True
    assert "within 1%" in checks(on_device)["compute"].evidence
    assert_broken("compute", "its loss is 3.0", checks(replace(on_device, check=replace(on_device.check, score=3.0))))


def test_losses_of_another_python_may_differ_slightly_and_those_of_this_one_may_not() -> None:
    elsewhere = replace(evidence(is_foreign=True, score=2.26), shares_python=False)
    found = checks(elsewhere)["compute"]
    assert found.held is True
    assert found.evidence.endswith("bit for bit in one Python, within 1% of that in another")
    assert_broken("compute", "its loss is 3.0", checks(replace(elsewhere, check=replace(elsewhere.check, score=3.0))))
    among = check_rules({"raw": evidence(), "other": evidence(score=2.26), "elsewhere": elsewhere}, CONDITIONS)
    assert next(each for each in among if each.rule == "compute").broken_by.keys() == {"other"}
    strategies = {"elsewhere": elsewhere, "raw": evidence(), "other": evidence(score=2.26)}
    first = check_rules(strategies, CONDITIONS)
    assert next(each for each in first if each.rule == "compute").broken_by.keys() == {"other"}


def test_losses_of_a_loader_that_sets_the_threads_may_differ_slightly() -> None:
    other = evidence(is_foreign=True, score=2.26, torch_threads=1)
    found = checks(other)["compute"]
    assert found.held is True
    assert found.evidence.endswith("bit for bit with as many threads, within 1% with others")
    assert_broken("compute", "its loss is 3.0", checks(replace(other, check=replace(other.check, score=3.0))))


def test_losses_that_all_diverged_are_equal() -> None:
    diverged = evidence(score=float("nan"))
    found = check_rules({"raw": diverged, "other": diverged}, CONDITIONS)
    assert all(each.held for each in found)
    assert_broken("compute", "its loss is nan, but the loss of raw is 2.25", checks(diverged))


def test_inference_is_compared_by_its_outputs() -> None:
    inference = asked(compute="inference")
    assert "the mean square of the outputs after the same steps" in checks(evidence(), inference)["compute"].evidence
    assert_broken("compute", "its mean square of the outputs is 3.0, but", checks(evidence(score=3.0), inference))
    silent = evidence(score=None)
    found = {each.rule: each for each in check_rules({"raw": silent, "other": silent}, inference)}
    assert found["compute"].evidence.startswith("every strategy made the model with the same seed; its outputs are no")


def test_simulated_compute_is_the_same_wait_for_all() -> None:
    found = checks(evidence(score=None, weights=""), asked(compute="simulated:20ms"))
    assert found["compute"].held is True
    assert "20 ms" in found["compute"].evidence


def test_compute_threads_of_a_loader_of_the_user_are_its_own_affair() -> None:
    own = replace(with_round(1, torch_threads=2), is_foreign=True)
    assert checks(own)["resources"].held is True
    assert checks(replace(with_round(1, affinity=[0]), is_foreign=True))["resources"].held is False


@pytest.mark.parametrize("code", [{"step": "my_train:make_step"}, {"model": "my_models:make"}])
def test_code_of_the_user_that_sets_the_compute_threads_disqualifies_no_strategy(code: dict[str, str]) -> None:
    set_by_code = with_round(1, torch_threads=2)
    assert checks(set_by_code, asked(**code))["resources"].held is True
    assert_broken("resources", "it computed with 2 threads in round 1", checks(set_by_code))


def test_all_cpus_busy_all_the_time_break_nothing() -> None:
    assert checks(with_round(0, cpu_seconds=4.1))["resources"].held is True


def test_files_that_the_kernel_does_not_report_on_are_in_the_evidence() -> None:
    assert "does not report" not in checks(evidence())["cache"].evidence
    found = checks(with_round(0, unreported_files=40))["cache"]
    assert found.held is True
    assert found.evidence.endswith("mincore, which does not report on 40 files that belong to another user")


def test_unknown_files_of_a_source_leave_the_rule_unchecked_unless_only_stores_are_read() -> None:
    unknown = "the files that my_data:dataset reads are unknown, and were neither read nor checked"
    conditions = asked(source="my_data:dataset")
    found = checks(replace(evidence(), has_unknown_files=True), conditions)["cache"]
    assert (found.held, found.broken_by) == (None, {})
    assert found.evidence.endswith(unknown)
    of_stores = checks(evidence(is_presaved=True), conditions)["cache"]
    assert of_stores.held is True
    assert unknown not in of_stores.evidence


def test_a_loader_that_may_have_read_unknown_files_leaves_the_rule_unchecked() -> None:
    found = checks(replace(evidence(is_foreign=True), has_unknown_files=True))["cache"]
    assert (found.held, found.broken_by) == (None, {})
    assert "; the files of photographs, all of which other may read, are too many" in found.evidence
    assert checks(replace(MISPLACED, has_unknown_files=True))["cache"].held is False


def test_copies_that_a_loader_of_the_user_may_keep_are_in_the_evidence() -> None:
    unseen = "copies that a loader keeps outside the source and its own folder cannot be seen"
    assert unseen not in checks(evidence())["cache"].evidence
    found = checks(evidence(is_foreign=True))["cache"]
    assert found.held is True
    assert found.evidence.endswith(unseen)


def test_what_is_paid_for_is_in_the_evidence() -> None:
    assert checks(evidence())["cost"].evidence == "no strategy needs a store or prepares anything"
    prepares = replace(evidence(is_foreign=True, make_seconds=2.5), writing=WrittenStore(2.0, 5000, 100))
    found = checks(prepares)["cost"]
    assert found.held is True
    assert "prepared files of 1 strategy;" in found.evidence
    assert found.evidence.endswith("other took 2.5 s to make")


def test_noise_is_not_handled_in_too_few_rounds_and_no_strategy_is_disqualified() -> None:
    found = checks(evidence(), replace(CONDITIONS, rounds=4))
    assert found["noise"].held is False
    assert found["noise"].broken_by == {}
    assert "an interval needs 6 rounds, so no difference is claimed" in found["noise"].evidence


def test_noise_is_not_handled_if_a_cpu_quota_stopped_a_strategy_in_most_rounds() -> None:
    stopped = {number: sample(throttled=0.5 * (number > 1)) for number in range(6)}
    found = checks(replace(evidence(), samples=stopped))
    assert found["noise"].held is False
    assert not found["noise"].broken_by
    assert "a CPU quota was used up in 50% of its periods (cpu.stat)" in found["noise"].evidence
    assert checks(with_round(2, throttled=0.5))["noise"].held


def test_arrays_that_could_not_be_read_are_in_the_evidence_with_their_strategy() -> None:
    unread = "38.5 MB of _Tensor were not read, because only a copy would show what they contain"
    found = checks(evidence(is_foreign=True, unread=unread))["loaded"]
    assert found.held is True
    assert found.evidence.endswith(f"; other: {unread}")


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_not_to_be_checked_neither_holds_nor_disqualifies(rule: str) -> None:
    hopeless = replace(
        with_round(0, samples=1, affinity=[7], misplaced_pages=9),
        check=evidence(is_presaved=True, weights="", pages_absent=1).check,
        is_presaved=True,
        parts=replace(PARTS, wall_seconds=3.0),
    )
    found = checks(hopeless, replace(asked(unchecked=(rule,)), rounds=1))
    assert found[rule].held is None
    assert found[rule].broken_by == {}
    assert [each.rule for each in found.values() if each.held is not False] == [rule]
