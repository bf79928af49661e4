"""A report whose metrics contradict each other is not published, and every contradiction is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from etl.comparison.judge.contradictions import ContradictionError, check_report, contradictions
from etl.comparison.judge.report import Losses, Presaving, SplitTrial
from etl.comparison.show.report import Report
from etl.measuring.statistics import Interval
from tests.comparison_reports import broken_by, changed, changed_round, photographs

NAMES = ["raw", "async-raw", "presaved", "async-presaved"]


def changed_parts(number: int, **seconds: float) -> Report:
    return changed(number, parts=replace(photographs().strategies[number].parts, **seconds))


def changed_walls(number: int, wall: Callable[[int], float]) -> Report:
    rounds = photographs().strategies[number].rounds
    return changed(
        number,
        rounds=[
            replace(each, wall_seconds=wall(each.round), compute_seconds=0.0, stall_seconds=0.0) for each in rounds
        ],
    )


def changed_stage(number: int, **metrics: Any) -> Report:
    report = photographs()
    stages = list(report.stages)
    stages[number] = replace(stages[number], **metrics)
    return replace(report, stages=stages)


def test_a_consistent_report_is_published() -> None:
    assert list(contradictions(photographs())) == []
    check_report(photographs())


def test_a_disqualified_strategy_with_its_reason_is_no_contradiction() -> None:
    check_report(broken_by("async-presaved"))


def test_if_the_whole_source_was_measured_rounds_are_not_scaled() -> None:
    report = photographs()
    reference = report.strategies[0].parts.wall_seconds
    strategies = []
    for each in report.strategies:
        wall = each.parts.wall_seconds
        rounds = [replace(one, wall_seconds=wall * (0.96 + one.round / 100)) for one in each.rounds]
        exactly = None if each.ratio is None else Interval(*[wall / reference] * 3, len(rounds))
        strategies.append(replace(each, rounds=rounds, ratio=exactly))
    check_report(replace(report, strategies=strategies, measured_records=report.source_records))


def test_a_slow_start_that_counts_less_in_a_whole_epoch_is_no_contradiction() -> None:
    # Measured it was slower than the reference, as workers took a second to start; of a whole epoch that is little.
    slower = [replace(each, wall_seconds=each.wall_seconds * 1.5) for each in photographs().strategies[1].rounds]
    check_report(changed(1, rounds=slower))


def test_a_fast_start_up_of_several_batches_counts_once() -> None:
    # Of 8 batches, the first 6 came at once; the other 25 of an epoch take 0.27 s for every two.
    faster = [
        replace(each, wall_seconds=0.27, compute_seconds=0.2, stall_seconds=0.0, start_up_batches=6)
        for each in photographs().strategies[3].rounds
    ]
    check_report(changed(3, rounds=faster))


def test_one_batch_that_was_measured_may_be_scaled_to_the_whole_source() -> None:
    check_report(replace(photographs(), measured_records=64))


CHANGES: dict[str, tuple[Callable[[], Report], str]] = {
    "a part below 0": (lambda: changed_parts(0, stall_seconds=-0.1), "raw: stall_seconds is -0.1"),
    "a host wait below 0": (lambda: changed(1, host_wait_seconds=-2.0), "async-raw: host_wait_seconds is -2.0"),
    "storage longer than the stall": (
        lambda: changed(1, losses=Losses(0.01, 90.0, 0.0, "psi")),
        "async-raw: start-up and storage are longer than the stall",
    ),
    "storage that was measured in no way": (
        lambda: changed(1, losses=Losses(0.01, 0.0, 0.0, None)),
        "async-raw: storage is 0.0, but it was measured by None",
    ),
    "a time that is no number": (
        lambda: changed_parts(1, interference_seconds=float("nan")),
        "async-raw: interference_seconds is nan",
    ),
    "a store that is never written": (
        lambda: changed(2, presaving=Presaving(float("inf"), 1)),
        "presaved: write_seconds is inf",
    ),
    "a trial below 0": (lambda: changed(1, splits=[SplitTrial(2, 2, 5, -1.0)]), "async-raw: epoch_seconds is -1.0"),
    "a time of a round below 0": (
        lambda: changed_round(1, compute_alone_seconds=-1.0),
        "async-raw: compute_alone_seconds is -1.0",
    ),
    "a time of a stage below 0": (
        lambda: changed_stage(2, etl_alone_seconds=-1.0),
        "stage decode: etl_alone_seconds is -1.0",
    ),
    "compute and stall longer than the wall": (
        lambda: changed_round(1, stall_seconds=9.0),
        "async-raw: round 0: compute and stall are longer than the wall time",
    ),
    "a round twice": (lambda: changed_round(1, round=1), "async-raw: it has rounds"),
    "a round too many": (lambda: changed_round(1, round=9), "async-raw: it has rounds"),
    "no round": (lambda: changed(1, rounds=[]), "async-raw: it has rounds"),
    "rounds that were longer than the epoch": (
        lambda: changed_walls(3, lambda number: 9.0 + number),
        "async-presaved: its wall time is 3.29 s for 2000 records, but 9.0 to 17.0 s for 512 in single rounds",
    ),
    "rounds too short for the epoch": (
        lambda: changed_walls(3, lambda _: 0.7),
        "async-presaved: its wall time is 3.29 s for 2000 records, but 0.7 to 0.7 s for 512 in single rounds",
    ),
    "a ratio far from those of its rounds": (
        lambda: changed(1, ratio=Interval(0.12, 0.1, 0.13, 9)),
        "async-raw: it took 0.70",
    ),
    "a ratio that is not that of the wall times": (
        lambda: changed(1, ratio=Interval(0.75, 0.65, 0.8, 9)),
        "async-raw: its ratio is 0.75, but its wall time is 0.70",
    ),
    "a ratio outside its interval": (
        lambda: changed(1, ratio=Interval(0.7, 0.75, 0.8, 9)),
        "async-raw: the ratio 0.7 is outside its interval 0.75 to 0.8",
    ),
    "a ratio of other rounds": (
        lambda: changed(1, ratio=replace(photographs().strategies[1].ratio, count=8)),
        "async-raw: its ratio has 8 rounds, but 9 were measured together with raw",
    ),
    "no ratio": (lambda: changed(1, ratio=None), "async-raw: it has no ratio, but the reference is raw"),
    "a cost without a store": (
        lambda: changed(1, presaving=photographs().strategies[2].presaving),
        "async-raw: it has a cost of presaving, but its stage is None",
    ),
    "a store without a cost": (lambda: changed(2, presaving=None), "presaved: it has no cost of presaving"),
    "the name of a strategy": (
        lambda: changed(3, name="presaved"),
        f"two strategies have the same name: {', '.join([*NAMES[:3], 'presaved'])}",
    ),
    "a ratio of the reference": (
        lambda: changed(0, ratio=Interval(1.0, 1.0, 1.0, 9)),
        "raw: it has a ratio, but the reference is raw",
    ),
    "more records than there are": (
        lambda: replace(photographs(), measured_records=2001),
        "2001 of 2000 records were measured",
    ),
    "no records": (lambda: replace(photographs(), measured_records=0), "0 of 2000 records were measured"),
    "fewer rounds than there are": (
        lambda: changed(0, rounds=photographs().strategies[0].rounds[:3]),
        "async-raw: it has rounds [0, 1, 2, 3, 4, 5, 6, 7, 8] of 3",
    ),
    "a rule that is missing": (
        lambda: replace(photographs(), checks=photographs().checks[1:]),
        "rule 'samples' is not in the report",
    ),
    "a broken rule that is said to have held": (
        lambda: replace(photographs(), checks=[replace(each, held=True) for each in broken_by("async-raw").checks]),
        "rule 'samples': it was broken by async-raw, but held is True",
    ),
    "a rule that was broken by something else": (
        lambda: broken_by("turbo"),
        "rule 'samples': it was broken by turbo, which is not a strategy",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_changed_metric_is_found_and_named(change: str) -> None:
    make, message = CHANGES[change]
    assert any(text.startswith(message) for text in contradictions(make())), list(contradictions(make()))
    with pytest.raises(ContradictionError, match="so the report is not published"):
        check_report(make())


def test_one_error_names_all_contradictions() -> None:
    report = replace(changed(2, host_wait_seconds=-1.0, presaving=None), measured_records=5000)
    with pytest.raises(ContradictionError) as raised:
        check_report(report)
    for text in ("5000 of 2000 records were measured", "host_wait_seconds is -1.0", "it has no cost of presaving"):
        assert text in str(raised.value)
