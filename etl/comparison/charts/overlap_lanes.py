"""A stretch of batches in time: what is loaded while something is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from etl import strategies
from etl.comparison.charts.axis import LinearAxis
from etl.comparison.charts.drawing import Drawing
from etl.comparison.charts.rows import Row, draw_axis, draw_grid
from etl.comparison.report import Report, Timeline
from etl.comparison.units import percent, seconds, time_scale

HEIGHT, TOP, BOTTOM = 24, 3, 21
BATCHES = 12
# The axis ends where the slowest strategy has had its batches, or after so many times what the fastest takes: otherwise
# nothing could be seen of the fastest.
LONGEST = 3.0


@dataclass(frozen=True)
class Lanes:
    """One strategy: the lane of compute, those of what loads, and the stretch in figures."""

    name: str
    note: str
    rows: list[Row]
    batches: int
    until: str
    waiting: str
    computing: str


@dataclass(frozen=True)
class OverlapLanes:
    """All strategies over one time axis."""

    strategies: list[Lanes]
    axis: Markup


def overlap_lanes(report: Report) -> OverlapLanes | None:
    """The first batches of each timeline, at most `BATCHES`; None where none has any."""
    timelines = [each for each in report.timelines if each.computes]
    if not timelines:
        return None
    ends = [each.computes[:BATCHES][-1][1] for each in timelines]
    axis = LinearAxis(min(max(ends), LONGEST * min(ends)))
    scale = time_scale([axis.end])
    marks = [(axis.position(mark), scale.mark(mark)) for mark in axis.marks(scale.size)]
    grid = [place for place, _ in marks]
    kinds = {each.name: each.strategy for each in report.strategies}
    return OverlapLanes([_lanes(each, kinds[each.strategy], axis, grid) for each in timelines], draw_axis(marks))


def _lanes(timeline: Timeline, strategy: str, axis: LinearAxis, grid: list[float]) -> Lanes:
    end = min(timeline.computes[:BATCHES][-1][1], axis.end)
    computes = [span for span in timeline.computes if span[0] < end]
    waits = [span for span in timeline.waits if span[0] < end]
    waiting, computing = (sum(min(b, end) - a for a, b in spans) for spans in (waits, computes))
    drawing = Drawing(
        HEIGHT,
        f"{timeline.strategy}, compute: {len(computes)} batches in {seconds(end)}, of which {seconds(waiting)} waiting",
    )
    draw_grid(drawing, grid)
    _draw_spans(drawing, axis, "compute", "computes", computes, end)
    _draw_spans(drawing, axis, "stall", "waits", waits, end)
    threads = sorted({thread for thread, *_ in timeline.loads})
    loaders = [f"loading thread {number}" for number in range(1, len(threads) + 1)]
    if not strategies.find(strategy).loads_ahead:
        loaders = ["training loop"] * len(threads)
    loads = [_load_row(timeline, each, name, axis, end, grid) for each, name in zip(threads, loaders, strict=True)]
    return Lanes(
        name=timeline.strategy,
        note="" if threads else _why_no_threads(strategy),
        rows=[Row("compute", "", drawing.markup()), *loads],
        batches=len(computes),
        until=seconds(end),
        waiting=f"{seconds(waiting)} ({percent(waiting / end)})",
        computing=f"{seconds(computing)} ({percent(computing / end)})",
    )


def _load_row(timeline: Timeline, thread: int, name: str, axis: LinearAxis, end: float, grid: list[float]) -> Row:
    loads = [(a, b, batch) for each, a, b, batch in timeline.loads if each == thread and a < end]
    busy = sum(min(b, end) - a for a, b, _ in loads)
    drawing = Drawing(HEIGHT, f"{timeline.strategy}, {name}: loads for {seconds(busy)}")
    draw_grid(drawing, grid)
    for start, stop, batch in loads:
        left, right = axis.position(start), axis.position(min(stop, end))
        drawing.bar(left, right, TOP, BOTTOM, "part load", f"loads batch {batch}: {seconds(stop - start)}")
        drawing.label(left, right, 16, (f"batch {batch}", str(batch)), "on-load")
    return Row(name, "", drawing.markup())


def _draw_spans(
    drawing: Drawing, axis: LinearAxis, kind: str, does: str, spans: Sequence[tuple[float, float]], end: float
) -> None:
    for start, stop in spans:
        left, right = axis.position(start), axis.position(min(stop, end))
        drawing.bar(left, right, TOP, BOTTOM, f"part {kind}", f"{does} {seconds(stop - start)}")


def _why_no_threads(strategy: str) -> str:
    if strategies.find(strategy).uses_processes:
        return "Its worker processes load, which cannot be seen from here."
    return "It loads in the training loop itself: while the loop waits, it loads."
