"""Figures of one report that cannot all be true."""

from __future__ import annotations

import math
from collections.abc import Iterator

from etl.comparison.report import Report, StrategyResult
from etl.comparison.rules import RULES

# Figures that are computed twice, in two ways, differ by rounding alone.
TOLERANCE = 1e-6
# The ratio of two means lies among the ratios of the rounds that they are means of, or not far outside.
RATIO_MARGIN = 1.25


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
    if report.reference not in names:
        yield f"the reference {report.reference} is not among the strategies"
    if not 0 < report.measured_records <= report.source_records:
        yield f"{report.measured_records} records were measured of {report.source_records}"
    for result in report.strategies:
        for text in (
            *_of_parts(result),
            *_of_counts(report, result),
            *_of_costs(report, result),
            *_of_ratio(report, result),
        ):
            yield f"{result.name}: {text}"
    for rule in RULES:
        if rule not in {check.rule for check in report.checks}:
            yield f"rule {rule!r} is not in the report"
    broken = {name for check in report.checks for name in check.broken_by}
    for result in report.strategies:
        if bool(result.disqualified) != (result.name in broken) or (result.verdict == "disqualified") != (
            result.name in broken
        ):
            who = ", ".join(sorted(broken)) or "nobody"
            yield f"{result.name}: the verdict is {result.verdict!r}, and rules were broken by {who}"


def _of_parts(result: StrategyResult) -> Iterator[str]:
    parts = result.parts
    total = (
        parts.compute_alone_seconds
        + parts.interference_seconds
        + parts.stall_seconds
        + parts.harness_seconds
        + parts.unexplained_seconds
    )
    if not _equal(total, parts.wall_seconds):
        yield f"the parts add up to {total} s, the wall time is {parts.wall_seconds} s"
    if min(parts.wall_seconds, parts.compute_alone_seconds, parts.stall_seconds, parts.harness_seconds) < 0:
        yield f"a time is below 0: {parts}"
    for figures in result.rounds:
        if figures.compute_seconds + figures.stall_seconds > figures.wall_seconds * (1 + TOLERANCE):
            yield f"round {figures.round}: compute and stall are longer than the wall time"


def _of_counts(report: Report, result: StrategyResult) -> Iterator[str]:
    samples = result.samples_per_second * result.parts.wall_seconds
    if not _equal(samples, report.source_records):
        yield (
            f"{result.samples_per_second} samples/s in {result.parts.wall_seconds} s are {samples} samples, not "
            f"{report.source_records}"
        )
    numbers = [figures.round for figures in result.rounds]
    if len(set(numbers)) < len(numbers) or not numbers or max(numbers) >= report.rounds:
        yield f"it has rounds {numbers} of {report.rounds}"
    longest = max(result.etl_alone_seconds, result.parts.compute_alone_seconds)
    if not _equal(result.overlap, longest / result.parts.wall_seconds):
        yield (
            f"the overlap is {result.overlap}, the longer of ETL and compute alone over the wall time "
            f"{longest / result.parts.wall_seconds}"
        )


def _of_costs(report: Report, result: StrategyResult) -> Iterator[str]:
    cost = result.presaving
    if (cost is None) != (result.stage is None):
        yield f"it {'has no' if cost is None else 'has a'} cost of presaving, and stage {result.stage!r}"
    if cost is None or cost.break_even_epochs is None:
        return
    others = [each.parts.wall_seconds for each in report.strategies if each.stage is None and not each.disqualified]
    epochs = cost.break_even_epochs
    paid = cost.write_seconds + epochs * result.parts.wall_seconds
    if not others or not _equal(paid, epochs * min(others)):
        fastest = epochs * min(others, default=0.0)
        yield f"after {epochs} epochs it has taken {paid} s, the fastest strategy without a store {fastest} s"


def _of_ratio(report: Report, result: StrategyResult) -> Iterator[str]:
    ratio = result.ratio
    if ratio is None:
        return
    if ratio.low is not None and ratio.high is not None and not ratio.low <= ratio.median <= ratio.high:
        yield f"the ratio {ratio.median} is outside its interval {ratio.low} to {ratio.high}"
    reference = report.strategy(report.reference)
    walls = {figures.round: figures.wall_seconds for figures in reference.rounds}
    paired = [each.wall_seconds / walls[each.round] for each in result.rounds if each.round in walls]
    if len(paired) != ratio.rounds:
        yield f"its ratio is of {ratio.rounds} rounds, {len(paired)} were measured together with {report.reference}"
    elif (
        not min(paired) / RATIO_MARGIN
        <= result.parts.wall_seconds / reference.parts.wall_seconds
        <= max(paired) * RATIO_MARGIN
    ):
        yield (
            f"its wall time is {result.parts.wall_seconds / reference.parts.wall_seconds} of {report.reference}'s, "
            f"in single rounds it was {min(paired)} to {max(paired)}"
        )


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
