"""The wall time of each strategy over the reference's: the median, and the interval it is known to lie in."""

from __future__ import annotations

from etl.comparison.charts.axis import RatioAxis
from etl.comparison.charts.drawing import Drawing
from etl.comparison.charts.rows import Row, RowChart, draw_axis, draw_grid
from etl.comparison.report import Report, StrategyResult
from etl.comparison.units import bounds, ratio
from etl.measuring.statistics import Interval

HEIGHT = 36
# What the verdicts are drawn as: only a difference that was shown has the colour.
KINDS = {"faster": "shown", "slower": "shown", "reference": "reference", "disqualified": "disqualified"}


def ratio_intervals(report: Report) -> RowChart | None:
    """A dot for the median and a whisker for the interval, on a logarithmic axis; None without any ratio."""
    intervals = [each.ratio for each in report.strategies if each.ratio is not None]
    if not intervals:
        return None
    bounds = [bound for each in intervals for bound in (each.low, each.estimate, each.high) if bound is not None]
    axis = RatioAxis.around(bounds)
    marks = [(axis.position(mark), f"{mark:g}×") for mark in axis.marks()]  # noqa: RUF001  the sign for times
    return RowChart([_row(each, axis, [place for place, _ in marks]) for each in report.strategies], draw_axis(marks))


def describe_interval(interval: Interval | None) -> str:
    """`0.24 (0.22 to 0.28)`; without bounds, where there are none, the median alone."""
    estimate, ends = ratio(None if interval is None else interval.estimate), bounds(interval)
    return f"{estimate} ({ends})" if ends else estimate


def _row(result: StrategyResult, axis: RatioAxis, grid: list[float]) -> Row:
    figures = _describe(result)
    drawing = Drawing(HEIGHT, f"{result.name}: {figures}")
    draw_grid(drawing, grid)
    draw_grid(drawing, [axis.position(1)], "one")
    kind, middle = KINDS.get(result.verdict, "unclear"), HEIGHT / 2
    if result.verdict == "reference":
        drawing.dot(axis.position(1), middle, 6, "point reference", figures)
    elif result.ratio is not None:
        if result.ratio.low is not None and result.ratio.high is not None:
            low, high = axis.position(result.ratio.low), axis.position(result.ratio.high)
            drawing.line(low, middle, high, middle, f"whisker {kind}")
            for end in (low, high):
                drawing.line(end, middle - 5, end, middle + 5, f"whisker end {kind}")
        drawing.dot(axis.position(result.ratio.estimate), middle, 6, f"point {kind}", figures)
    return Row(result.name, figures, drawing.markup())


def _describe(result: StrategyResult) -> str:
    if result.verdict == "reference":
        return "reference: 1 by definition"
    return result.verdict if result.ratio is None else f"{describe_interval(result.ratio)}, {result.verdict}"
