"""Where the wall time of an epoch goes: one bar for each strategy."""

from __future__ import annotations

from itertools import accumulate

from etl.comparison.charts.axis import LinearAxis
from etl.comparison.charts.drawing import Drawing
from etl.comparison.charts.rows import Row, RowChart, draw_axis, draw_grid
from etl.comparison.report import Parts, Report, StrategyResult
from etl.comparison.units import Scale, time_scale

HEIGHT, TOP, BOTTOM = 42, 8, 34


def epoch_bars(report: Report) -> RowChart:
    """Bars of compute alone, interference, stall and the rest, which end at the wall time."""
    walls = [each.parts.wall_seconds for each in report.strategies]
    axis, scale = LinearAxis(max(walls)), time_scale(walls)
    marks = [(axis.position(mark), scale.mark(mark)) for mark in axis.marks(scale.size)]
    return RowChart(
        [_row(each, axis, scale, [place for place, _ in marks]) for each in report.strategies], draw_axis(marks)
    )


def _row(result: StrategyResult, axis: LinearAxis, scale: Scale, grid: list[float]) -> Row:
    segments = _segments(result.parts)
    wall = scale.text(result.parts.wall_seconds)
    spoken = ", ".join(f"{name} {scale.text(figure)}" for _, name, _, figure in segments)
    drawing = Drawing(HEIGHT, f"{result.name}: {wall} for an epoch: {spoken}")
    draw_grid(drawing, grid)
    disqualified = " disqualified" if result.disqualified else ""
    rights = list(accumulate(axis.position(drawn) for _, _, drawn, _ in segments))
    lefts = [0.0, *rights[:-1]]
    for left, right, (kind, name, _, figure) in zip(lefts, rights, segments, strict=True):
        drawing.bar(left, right, TOP, BOTTOM, f"part {kind}{disqualified}", f"{name}: {scale.text(figure)}")
    if result.disqualified:
        drawing.bar(0, rights[-1], TOP, BOTTOM, "hatch")
    for left, right, (kind, name, _, figure) in zip(lefts, rights, segments, strict=True):
        words = scale.text(figure)
        drawing.label(left, right, 25.5, (f"{name} {words}", words), f"on-{kind}{disqualified}")
    warning = f"disqualified: {'; '.join(result.disqualified)}" if result.disqualified else ""
    return Row(result.name, wall, drawing.markup(), warning)


def _segments(parts: Parts) -> list[tuple[str, str, float, float]]:
    """`(kind, name, seconds drawn, seconds measured)`.

    Where compute was faster in the epoch than alone, which is noise, no interference is drawn, and of compute what it
    took in the epoch: the bar ends at the wall time either way.
    """
    interference = parts.interference_seconds
    rest = parts.harness_seconds + parts.unexplained_seconds
    return [
        ("compute", "compute alone", parts.compute_alone_seconds + min(interference, 0.0), parts.compute_alone_seconds),
        ("interference", "interference", max(interference, 0.0), interference),
        ("stall", "stall", parts.stall_seconds, parts.stall_seconds),
        ("rest", "rest", max(rest, 0.0), rest),
    ]
