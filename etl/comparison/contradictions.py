"""Figures of one report that cannot all be true.

What follows from other figures of the report is a property of its classes and not looked at here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from etl.comparison.report import Check, Report, StrategyResult
from etl.comparison.rules import RULES

# Rounding alone makes figures differ by less.
TOLERANCE = 1e-6


class ContradictionError(RuntimeError):
    """A report whose figures contradict each other. It is not published."""


def check_report(report: Report) -> None:
    """Raise `ContradictionError` that names every contradiction."""
    found = list(contradictions(report))
    if found:
        raise ContradictionError(
            f"the figures contradict each other, so the report is not published: {'; '.join(found)}"
        )


def contradictions(report: Report) -> Iterator[str]:
    """Each as a sentence that names the strategy and the figures."""
    names = [each.name for each in report.strategies]
    if len(set(names)) < len(names):
        yield f"two strategies are called the same: {', '.join(names)}"
    if not 0 < report.measured_records <= report.source_records:
        yield f"{report.measured_records} records were measured of {report.source_records}"
    for result in report.strategies:
        for text in (*_of_times(result), *_of_rounds(report, result), *_of_ratio(report, result)):
            yield f"{result.name}: {text}"
        if (result.presaving is None) != (result.stage is None):
            has = "has no" if result.presaving is None else "has a"
            yield f"{result.name}: it {has} cost of presaving, and stage {result.stage!r}"
    for stage in report.stages:
        yield from (f"stage {stage.stage}: {text}" for text in _impossible_times(stage))
    for rule in RULES:
        if rule not in {check.rule for check in report.checks}:
            yield f"rule {rule!r} is not in the report"
    for check in report.checks:
        yield from (f"rule {check.rule!r}: {text}" for text in _of_check(check, names))


def _of_times(result: StrategyResult) -> Iterator[str]:
    for timed in (result, result.parts, result.presaving, result.prediction, *result.splits, *result.rounds):
        if timed is not None:
            yield from _impossible_times(timed)
    for figures in result.rounds:
        if figures.compute_seconds + figures.stall_seconds > figures.wall_seconds * (1 + TOLERANCE):
            yield f"round {figures.round}: compute and stall are longer than the wall time"


def _impossible_times(figures: object) -> Iterator[str]:
    """Every time in a field of `figures` that is below 0 or no number. Compute may take less time beside loading."""
    for name, seconds in vars(figures).items():
        lowest = -math.inf if name == "interference_seconds" else 0.0
        if name.endswith("_seconds") and seconds is not None and not lowest <= seconds < math.inf:
            yield f"{name} is {seconds}"


def _of_rounds(report: Report, result: StrategyResult) -> Iterator[str]:
    numbers = [figures.round for figures in result.rounds]
    if len(set(numbers)) < len(numbers) or not numbers or max(numbers) >= report.rounds:
        yield f"it has rounds {numbers} of {report.rounds}"
    walls = [figures.wall_seconds for figures in result.rounds]
    if walls and not _between(result.parts.wall_seconds, min(walls), max(walls) * _most_scaled(report)):
        yield (
            f"its wall time is {result.parts.wall_seconds} s for {report.source_records} records, and in single rounds "
            f"{min(walls)} to {max(walls)} s for {report.measured_records}"
        )


def _of_ratio(report: Report, result: StrategyResult) -> Iterator[str]:
    ratio, reference = result.ratio, report.strategies[0]
    if (ratio is None) != (result.name == reference.name):
        yield f"it has {'no' if ratio is None else 'a'} ratio, and the reference is {reference.name}"
    if ratio is None:
        return
    if ratio.low is not None and ratio.high is not None and not ratio.low <= ratio.estimate <= ratio.high:
        yield f"the ratio {ratio.estimate} is outside its interval {ratio.low} to {ratio.high}"
    walls = {figures.round: figures.wall_seconds for figures in reference.rounds}
    paired = [each.wall_seconds / walls[each.round] for each in result.rounds if each.round in walls]
    if len(paired) != ratio.count:
        yield f"its ratio is of {ratio.count} rounds, {len(paired)} were measured together with {reference.name}"
        return
    scaled = _most_scaled(report)
    for figure in (ratio.estimate, ratio.low, ratio.high):
        if figure is not None and not _between(figure, min(paired) / scaled, max(paired) * scaled):
            yield (f"it took {min(paired)} to {max(paired)} of {reference.name}'s time in single rounds, not {figure}")


def _of_check(check: Check, names: list[str]) -> Iterator[str]:
    if check.broken_by and check.held is not False:
        yield f"it was broken by {', '.join(check.broken_by)}, and held is {check.held}"
    yield from (f"it was broken by {name}, which is no strategy" for name in check.broken_by if name not in names)


def _most_scaled(report: Report) -> float:
    """How many times as long as what was measured of it an epoch is at most: where the first batch took no time, as
    many times as it has batches after the first. At least it is as long.
    """
    size = max(1, min(report.batch_size, report.measured_records))
    measured, batches = report.measured_records / size, report.source_records / size
    return batches if measured <= 1 else (batches - 1) / (measured - 1)


def _between(figure: float, low: float, high: float) -> bool:
    return low * (1 - TOLERANCE) <= figure <= high * (1 + TOLERANCE)
