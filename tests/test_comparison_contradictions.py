"""A report whose figures contradict each other is not published, and every contradiction is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from etl.comparison.contradictions import ContradictionError, check_report, contradictions
from etl.comparison.report import Check, Report
from etl.comparison.rules import RULES
from etl.measuring.statistics import Interval
from tests import comparison_reports

NAMES = ["raw", "async-raw", "presaved", "async-presaved"]
# The fastest strategy without a store.
FASTEST = 4.42


def consistent() -> Report:
    """That of the photographs, with the rules as they are called and the costs that follow from its times."""
    report = comparison_reports.photographs()
    return replace(
        report,
        checks=[Check(rule, title, True, "seen") for rule, title in RULES.items()],
        strategies=[
            each
            if each.presaving is None
            else replace(each, presaving=replace(each.presaving, break_even_epochs=3.4 / (FASTEST - wall)))
            for each in report.strategies
            for wall in [each.parts.wall_seconds]
        ],
        stages=[
            replace(
                each,
                break_even_epochs=each.write_seconds / (FASTEST - each.wall_seconds)
                if each.stage != "raw" and each.wall_seconds < FASTEST
                else None,
            )
            for each in report.stages
        ],
    )


def changed(number: int, **figures: Any) -> Report:
    """`consistent`, but for some figures of strategy `number`."""
    report = consistent()
    strategies = list(report.strategies)
    strategies[number] = replace(strategies[number], **figures)
    return replace(report, strategies=strategies)


def changed_parts(number: int, **seconds: float) -> Report:
    return changed(number, parts=replace(consistent().strategies[number].parts, **seconds))


def changed_round(number: int, **figures: Any) -> Report:
    first, *others = consistent().strategies[number].rounds
    return changed(number, rounds=[replace(first, **figures), *others])


def changed_walls(number: int, wall: Callable[[int], float]) -> Report:
    rounds = consistent().strategies[number].rounds
    return changed(
        number,
        rounds=[
            replace(each, wall_seconds=wall(each.round), compute_seconds=0.0, stall_seconds=0.0) for each in rounds
        ],
    )


def changed_prediction(number: int, **figures: float) -> Report:
    prediction = consistent().strategies[number].prediction
    assert prediction is not None
    return changed(number, prediction=replace(prediction, **figures))


def changed_cost(number: int, **figures: Any) -> Report:
    cost = consistent().strategies[number].presaving
    assert cost is not None
    return changed(number, presaving=replace(cost, **figures))


def changed_stage(number: int, **figures: Any) -> Report:
    report = consistent()
    stages = list(report.stages)
    stages[number] = replace(stages[number], **figures)
    return replace(report, stages=stages)


def broken_by(name: str) -> list[Check]:
    first, *others = consistent().checks
    return [replace(first, held=False, broken_by={name: "other pixels"}), *others]


def test_a_consistent_report_is_published() -> None:
    assert list(contradictions(consistent())) == []
    check_report(consistent())


def test_a_disqualified_strategy_with_its_reason_is_no_contradiction() -> None:
    disqualified = changed(3, verdict="disqualified", disqualified=["samples: other pixels"])
    check_report(replace(disqualified, checks=broken_by("async-presaved")))


def test_a_whole_source_that_was_measured_is_consistent_with_its_rounds_as_they_are() -> None:
    report = consistent()
    reference = report.strategies[0].parts.wall_seconds
    strategies = []
    for each in report.strategies:
        wall = each.parts.wall_seconds
        rounds = [replace(one, wall_seconds=wall * (0.96 + one.round / 100)) for one in each.rounds]
        exactly = None if each.ratio is None else Interval(*[wall / reference] * 3, len(rounds))
        strategies.append(replace(each, rounds=rounds, ratio=exactly))
    check_report(replace(report, strategies=strategies, measured_records=report.source_records))


def test_a_long_start_that_weighs_less_in_a_whole_epoch_is_no_contradiction() -> None:
    # Measured it was slower than the reference, as workers took a second to start; of a whole epoch that is little.
    slower = [replace(each, wall_seconds=each.wall_seconds * 1.5) for each in consistent().strategies[1].rounds]
    check_report(changed(1, rounds=slower))


def test_one_batch_that_was_measured_may_be_scaled_to_the_whole_source() -> None:
    check_report(replace(consistent(), measured_records=64))


def test_what_a_store_saves_is_not_told_against_a_strategy_that_broke_a_rule() -> None:
    report = changed(1, verdict="disqualified", disqualified=["samples: other pixels"])
    slowest = report.strategies[0].parts.wall_seconds
    strategies = [
        replace(
            each, presaving=replace(cost, break_even_epochs=cost.write_seconds / (slowest - each.parts.wall_seconds))
        )
        if (cost := each.presaving) is not None
        else each
        for each in report.strategies
    ]
    stages = [
        each
        if each.stage == "raw"
        else replace(each, break_even_epochs=each.write_seconds / (slowest - each.wall_seconds))
        for each in report.stages
    ]
    check_report(replace(report, strategies=strategies, stages=stages, checks=broken_by("async-raw")))


@pytest.mark.parametrize("part", ["wall", "compute_alone", "interference", "stall", "harness", "unexplained"], ids=str)
@pytest.mark.parametrize("factor", [1.01, 0.99])
def test_parts_that_do_not_add_up_are_found(part: str, factor: float) -> None:
    seconds = getattr(consistent().strategies[1].parts, f"{part}_seconds")
    report = changed_parts(1, **{f"{part}_seconds": seconds * factor + 0.001})
    assert any(text.startswith("async-raw: the parts add up to") for text in contradictions(report))


CHANGES: dict[str, tuple[Callable[[], Report], str]] = {
    "a time below 0": (
        lambda: changed_parts(0, stall_seconds=-0.1, unexplained_seconds=3.2688),
        "raw: a time is below 0",
    ),
    "compute and stall longer than the wall": (
        lambda: changed_round(1, stall_seconds=9.0),
        "async-raw: round 0: compute and stall are longer than the wall time",
    ),
    "throughput": (lambda: changed(2, samples_per_second=700.0), "presaved: 700.0 samples/s in 3.31 s are 2317"),
    "overlap": (lambda: changed(2, overlap=0.5), "presaved: the overlap is 0.5"),
    "loading alone": (lambda: changed(1, etl_alone_seconds=5.0), "async-raw: the overlap is"),
    "a round twice": (lambda: changed_round(1, round=1), "async-raw: it has rounds"),
    "a round too many": (lambda: changed_round(1, round=9), "async-raw: it has rounds"),
    "no round": (lambda: changed(1, rounds=[]), "async-raw: it has rounds"),
    "rounds that were longer than the epoch": (
        lambda: changed_walls(3, lambda number: 9.0 + number),
        "async-presaved: its wall time is 3.29 s for 2000 records, and in single rounds 9.0 to 17.0 s for 512",
    ),
    "rounds too short for the epoch": (
        lambda: changed_walls(3, lambda _: 0.7),
        "async-presaved: its wall time is 3.29 s for 2000 records, and in single rounds 0.7 to 0.7 s for 512",
    ),
    "a ratio far from those of its rounds": (
        lambda: changed(1, ratio=Interval(0.12, 0.1, 0.13, 9)),
        "async-raw: it took 0.70",
    ),
    "an interval far from the ratios of its rounds": (
        lambda: changed(1, ratio=Interval(0.7, 0.05, 0.8, 9)),
        "async-raw: it took 0.70",
    ),
    "a ratio outside its interval": (
        lambda: changed(1, ratio=Interval(0.7, 0.75, 0.8, 9)),
        "async-raw: the ratio 0.7 is outside its interval 0.75 to 0.8",
    ),
    "a ratio of other rounds": (
        lambda: changed(1, ratio=replace(consistent().strategies[1].ratio, count=8)),
        "async-raw: its ratio is of 8 rounds, 9 were measured together with raw",
    ),
    "no ratio": (lambda: changed(1, ratio=None), "async-raw: it has no ratio, and the reference is raw"),
    "a verdict that the interval does not bear": (
        lambda: changed(1, ratio=Interval(0.7, 0.6, 1.1, 9)),
        "async-raw: the verdict is 'faster', by the interval 0.6 to 1.1 it is 'no difference shown'",
    ),
    "a break-even": (lambda: changed_cost(2, break_even_epochs=1.0), "presaved: after 1.0 epochs it has taken"),
    "seconds to write": (lambda: changed_cost(2, write_seconds=9.0), "presaved: after 3.06"),
    "a store that is said never to pay off": (
        lambda: changed_cost(2, break_even_epochs=None),
        "presaved: it never pays off, with 3.31 s an epoch and 4.42 s without a store",
    ),
    "a cost without a store": (
        lambda: changed(1, presaving=consistent().strategies[2].presaving),
        "async-raw: it has a cost of presaving, and stage None",
    ),
    "a store without a cost": (lambda: changed(2, presaving=None), "presaved: it has no cost of presaving"),
    "the error of a prediction": (
        lambda: changed_prediction(2, error=0.0),
        "presaved: the error of its prediction is 0.0",
    ),
    "throughput of a stage": (
        lambda: changed_stage(2, etl_samples_per_second=1.0),
        "stage decode: 1.0 samples/s in 0.91 s are 0.91 samples, not 2000",
    ),
    "break-even of a stage": (lambda: changed_stage(3, break_even_epochs=8.0), "stage resize: after 8.0 epochs"),
    "a stage that is said never to pay off": (
        lambda: changed_stage(3, break_even_epochs=None),
        "stage resize: it never pays off",
    ),
    "the name of a strategy": (
        lambda: changed(3, name="presaved"),
        f"two strategies are called the same: {', '.join([*NAMES[:3], 'presaved'])}",
    ),
    "the reference": (
        lambda: replace(consistent(), reference="turbo"),
        "the reference turbo is not among the strategies",
    ),
    "more records than there are": (
        lambda: replace(consistent(), measured_records=2001),
        "2001 records were measured of 2000",
    ),
    "no records": (lambda: replace(consistent(), measured_records=0), "0 records were measured of 2000"),
    "fewer rounds than there are": (lambda: replace(consistent(), rounds=3), "raw: it has rounds"),
    "a rule that is missing": (
        lambda: replace(consistent(), checks=consistent().checks[1:]),
        "rule 'samples' is not in the report",
    ),
    "a broken rule without consequence": (
        lambda: replace(consistent(), checks=broken_by("async-raw")),
        "async-raw: the verdict is 'faster', and rules were broken by async-raw",
    ),
    "a consequence without a broken rule": (
        lambda: changed(1, verdict="disqualified", disqualified=["samples: other pixels"]),
        "async-raw: the verdict is 'disqualified', and rules were broken by nobody",
    ),
    "a time that is no number": (
        lambda: changed_parts(1, stall_seconds=float("nan")),
        "async-raw: the parts add up to",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_changed_figure_is_found_and_named(change: str) -> None:
    make, message = CHANGES[change]
    assert any(text.startswith(message) for text in contradictions(make())), list(contradictions(make()))
    with pytest.raises(ContradictionError, match="so the report is not published"):
        check_report(make())


def test_all_contradictions_are_told_at_once() -> None:
    report = replace(changed(2, samples_per_second=1.0, overlap=0.1), measured_records=5000)
    with pytest.raises(ContradictionError) as raised:
        check_report(report)
    for text in ("5000 records were measured", "1.0 samples/s", "the overlap is 0.1"):
        assert text in str(raised.value)
