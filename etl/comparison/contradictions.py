"""Figures of one report that cannot all be true."""

from __future__ import annotations

import math
from collections.abc import Iterator

from etl.comparison.report import Report, StageResult, StrategyResult
from etl.comparison.results import verdict
from etl.comparison.rules import RULES

# Figures that are computed twice, in two ways, differ by rounding alone.
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
    if report.reference not in names:
        yield f"the reference {report.reference} is not among the strategies"
    if not 0 < report.measured_records <= report.source_records:
        yield f"{report.measured_records} records were measured of {report.source_records}"
    fastest = min(
        (each.parts.wall_seconds for each in report.strategies if each.stage is None and not each.disqualified),
        default=None,
    )
    for result in report.strategies:
        for text in (
            *_of_parts(result),
            *_of_counts(report, result),
            *_of_rounds(report, result),
            *_of_costs(result, fastest),
            *_of_ratio(report, result),
        ):
            yield f"{result.name}: {text}"
    for stage in report.stages:
        for text in _of_stage(report, stage, fastest):
            yield f"stage {stage.stage}: {text}"
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
    longest = max(result.etl_alone_seconds, result.parts.compute_alone_seconds)
    if not _equal(result.overlap, longest / result.parts.wall_seconds):
        yield (
            f"the overlap is {result.overlap}, the longer of ETL and compute alone over the wall time "
            f"{longest / result.parts.wall_seconds}"
        )


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


def _of_costs(result: StrategyResult, fastest: float | None) -> Iterator[str]:
    cost = result.presaving
    if (cost is None) != (result.stage is None):
        yield f"it {'has no' if cost is None else 'has a'} cost of presaving, and stage {result.stage!r}"
    if cost is not None:
        yield from _of_break_even(cost.break_even_epochs, cost.write_seconds, result.parts.wall_seconds, fastest)
    foretold = result.prediction
    if foretold is not None and foretold.at_speed_seconds is not None and foretold.at_speed_error is not None:
        at_speed = foretold.at_speed_seconds / result.parts.wall_seconds - 1
        if not _equal(foretold.at_speed_error, at_speed):
            yield f"the error of its prediction at speed is {foretold.at_speed_error}, by the wall times {at_speed}"
    if foretold is not None and foretold.error is not None:
        error = foretold.wall_seconds / result.parts.wall_seconds - 1
        if not _equal(foretold.error, error):
            yield f"the error of its prediction is {foretold.error}, by the wall times it is {error}"


def _of_stage(report: Report, stage: StageResult, fastest: float | None) -> Iterator[str]:
    samples = stage.etl_samples_per_second * stage.etl_alone_seconds
    if not _equal(samples, report.source_records):
        yield (
            f"{stage.etl_samples_per_second} samples/s in {stage.etl_alone_seconds} s are {samples} samples, not "
            f"{report.source_records}"
        )
    if stage.stage != "raw":
        yield from _of_break_even(stage.break_even_epochs, stage.write_seconds, stage.wall_seconds, fastest)


def _of_break_even(
    epochs: float | None, write_seconds: float, wall_seconds: float, fastest: float | None
) -> Iterator[str]:
    """`fastest` is the wall time of the fastest strategy without a store, None without one."""
    if epochs is None:
        if fastest is not None and wall_seconds < fastest:
            yield f"it never pays off, with {wall_seconds} s an epoch and {fastest} s without a store"
        return
    paid = write_seconds + epochs * wall_seconds
    if fastest is None or not _equal(paid, epochs * fastest):
        without = 0.0 if fastest is None else epochs * fastest
        yield f"after {epochs} epochs it has taken {paid} s, the fastest strategy without a store {without} s"


def _of_ratio(report: Report, result: StrategyResult) -> Iterator[str]:
    ratio = result.ratio
    if (ratio is None) != (result.name == report.reference):
        yield f"it has {'no' if ratio is None else 'a'} ratio, and the reference is {report.reference}"
    reference = next((each for each in report.strategies if each.name == report.reference), None)
    if ratio is None or reference is None:
        return
    if ratio.low is not None and ratio.high is not None and not ratio.low <= ratio.estimate <= ratio.high:
        yield f"the ratio {ratio.estimate} is outside its interval {ratio.low} to {ratio.high}"
    if not result.disqualified and result.verdict != verdict(ratio):
        yield f"the verdict is {result.verdict!r}, by the interval {ratio.low} to {ratio.high} it is {verdict(ratio)!r}"
    walls = {figures.round: figures.wall_seconds for figures in reference.rounds}
    paired = [each.wall_seconds / walls[each.round] for each in result.rounds if each.round in walls]
    if len(paired) != ratio.count:
        yield f"its ratio is of {ratio.count} rounds, {len(paired)} were measured together with {report.reference}"
        return
    scaled = _most_scaled(report)
    for figure in (ratio.estimate, ratio.low, ratio.high):
        if figure is not None and not _between(figure, min(paired) / scaled, max(paired) * scaled):
            yield f"it took {min(paired)} to {max(paired)} of {report.reference}'s time in single rounds, not {figure}"


def _most_scaled(report: Report) -> float:
    """How many times as long as what was measured of it an epoch is at most: where the first batch took no time, as
    many times as it has batches after the first. At least it is as long.
    """
    size = max(1, min(report.batch_size, report.measured_records))
    measured, batches = report.measured_records / size, report.source_records / size
    return batches if measured <= 1 else (batches - 1) / (measured - 1)


def _between(figure: float, low: float, high: float) -> bool:
    return low * (1 - TOLERANCE) <= figure <= high * (1 + TOLERANCE)


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
