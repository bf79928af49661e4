"""Contradictions between the metrics of a report, which keep it from being published."""

from __future__ import annotations

import math
from collections.abc import Iterator

from etl.comparison.judge.report import Check, ReportData, StrategyResult
from etl.comparison.judge.rules import RULES

# Larger than any rounding error, and less than the digits of a ratio that are shown.
TOLERANCE, RATIO_TOLERANCE = 1e-6, 1e-3


class ContradictionError(RuntimeError):
    """The metrics of a report contradict each other, so it is not published."""


def check_report(report: ReportData) -> None:
    """Raise `ContradictionError`, which lists all contradictions, if metrics of `report` contradict each other."""
    found = list(contradictions(report))
    if found:
        raise ContradictionError(
            f"the metrics contradict each other, so the report is not published: {'; '.join(found)}"
        )


def contradictions(report: ReportData) -> Iterator[str]:
    """Yield a description of each contradiction between metrics of the report.

    Only fields are checked: derived values are properties of the report's classes, which cannot contradict the fields.
    """
    names = [each.name for each in report.strategies]
    if len(set(names)) < len(names):
        yield f"two strategies have the same name: {', '.join(names)}"
    if not 0 < report.measured_records <= report.source_records:
        yield f"{report.measured_records} of {report.source_records} records were measured"
    for result in report.strategies:
        for text in (
            *_time_contradictions(result),
            *_round_contradictions(report, result),
            *_ratio_contradictions(report, result),
        ):
            yield f"{result.name}: {text}"
        if not result.is_foreign and (result.presaving is None) != (result.stage is None):
            has = "has no" if result.presaving is None else "has a"
            yield f"{result.name}: it {has} cost of presaving, but its stage is {result.stage!r}"
    for stage in report.stages:
        yield from (f"stage {stage.stage}: {text}" for text in _impossible_times(stage))
    for scenario in report.scenarios:
        for predicted in scenario.strategies:
            yield from (f"{predicted.strategy} if {scenario.what_if}: {text}" for text in _impossible_times(predicted))
    for rule in RULES:
        if rule not in {check.rule for check in report.checks}:
            yield f"rule {rule!r} is not in the report"
    for check in report.checks:
        yield from (f"rule {check.rule!r}: {text}" for text in _check_contradictions(check, names))


def _time_contradictions(result: StrategyResult) -> Iterator[str]:
    parts = (result, result.parts, result.losses, result.presaving)
    for timed in (*parts, *result.splits, *result.rounds):
        if timed is not None:
            yield from _impossible_times(timed)
    losses = result.losses
    if losses.start_up_seconds + (losses.storage_seconds or 0.0) > result.parts.stall_seconds * (1 + TOLERANCE):
        yield "start-up and storage are longer than the stall"
    if (losses.storage_seconds is None) != (losses.storage_method is None):
        yield f"storage is {losses.storage_seconds}, but it was measured by {losses.storage_method}"
    for measured in result.rounds:
        if measured.compute_seconds + measured.stall_seconds > measured.wall_seconds * (1 + TOLERANCE):
            yield f"round {measured.round}: compute and stall are longer than the wall time"


def _impossible_times(metrics: object) -> Iterator[str]:
    """Yield every time that is negative or not a number. Only interference may be negative."""
    for name, seconds in vars(metrics).items():
        lowest = -math.inf if name == "interference_seconds" else 0.0
        if name.endswith("_seconds") and seconds is not None and not lowest <= seconds < math.inf:
            yield f"{name} is {seconds}"


def _round_contradictions(report: ReportData, result: StrategyResult) -> Iterator[str]:
    numbers = [measured.round for measured in result.rounds]
    if len(set(numbers)) < len(numbers) or not numbers or max(numbers) >= report.rounds:
        yield f"it has rounds {numbers} of {report.rounds}"
    walls = [measured.wall_seconds for measured in result.rounds]
    scaling = _max_scaling(report, result)
    if walls and not _between(result.parts.wall_seconds, min(walls) * min(1, scaling), max(walls) * max(1, scaling)):
        yield (
            f"its wall time is {result.parts.wall_seconds} s for {report.source_records} records, but {min(walls)} to "
            f"{max(walls)} s for {result.measured_records} in single rounds"
        )


def _ratio_contradictions(report: ReportData, result: StrategyResult) -> Iterator[str]:
    ratio, reference = result.ratio, report.strategies[0]
    if (ratio is None) != (result.name == reference.name):
        yield f"it has {'no' if ratio is None else 'a'} ratio, but the reference is {reference.name}"
    if ratio is None:
        return
    if ratio.low is not None and ratio.high is not None and not ratio.low <= ratio.estimate <= ratio.high:
        yield f"the ratio {ratio.estimate} is outside its interval {ratio.low} to {ratio.high}"
    walls = {measured.round: measured.wall_seconds for measured in reference.rounds}
    paired = [each.wall_seconds / walls[each.round] for each in result.rounds if each.round in walls]
    if len(paired) != ratio.count:
        yield f"its ratio has {ratio.count} rounds, but {len(paired)} were measured together with {reference.name}"
        return
    # The times of both are scaled to the whole source, from different numbers of records.
    scalings = [_max_scaling(report, each) for each in (result, reference)]
    scaled = max(*scalings, *(1 / each for each in scalings))
    if not _between(ratio.estimate, min(paired) / scaled, max(paired) * scaled):
        in_rounds = f"it took {min(paired)} to {max(paired)} of {reference.name}'s time in single rounds"
        yield f"{in_rounds}, not {ratio.estimate}"
    quotient = result.parts.wall_seconds / reference.parts.wall_seconds
    if not math.isclose(ratio.estimate, quotient, rel_tol=RATIO_TOLERANCE):
        yield f"its ratio is {ratio.estimate}, but its wall time is {quotient} times that of {reference.name}"


def _check_contradictions(check: Check, names: list[str]) -> Iterator[str]:
    if check.broken_by and check.held is not False:
        yield f"it was broken by {', '.join(check.broken_by)}, but held is {check.held}"
    yield from (f"it was broken by {name}, which is not a strategy" for name in check.broken_by if name not in names)


def _max_scaling(report: ReportData, result: StrategyResult) -> float:
    """Return the largest possible ratio of the time of an epoch to that of the measured records.

    The ratio is largest if the start-up takes no time, so that all time is scaled with the number of batches. It is
    below 1 if more records were measured than the source has.
    """
    step_records = report.batch_size * int(report.settings.get("ranks", 1))
    size = max(1, min(step_records, result.measured_records))
    measured, batches = result.measured_records / size, report.source_records / size
    start_up = max((each.start_up_batches for each in result.rounds), default=1)
    return batches / measured if min(measured, batches) <= start_up else (batches - start_up) / (measured - start_up)


def _between(value: float, low: float, high: float) -> bool:
    return low * (1 - TOLERANCE) <= value <= high * (1 + TOLERANCE)
