"""Charts of a report: parts of an epoch, ratios, overlap of loading and compute, and stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from markupsafe import Markup

from etl import strategies
from etl.comparison.show.drawing import (
    Drawing,
    LinearAxis,
    RatioAxis,
    Row,
    RowChart,
    draw_axis,
    draw_grid,
)
from etl.measuring.statistics import Interval
from etl.units import Scale, bounds, percent, ratio, seconds, time_scale

if TYPE_CHECKING:
    from etl.comparison.judge.report import Parts, ProfileResult, Report, StageResult, StrategyResult, Timeline

_BAR_HEIGHT, _BAR_TOP, _BAR_BOTTOM = 42, 8, 34


def epoch_bars(report: Report) -> RowChart:
    """Draw the parts of an epoch's wall time: one bar per strategy."""
    walls = [each.parts.wall_seconds for each in report.strategies]
    axis, scale = LinearAxis(max(walls)), time_scale(walls)
    marks = [(axis.position(mark), scale.mark(mark)) for mark in axis.marks(scale.size)]
    return RowChart(
        [_epoch_row(each, axis, scale, [place for place, _ in marks]) for each in report.strategies], draw_axis(marks)
    )


def _epoch_row(result: StrategyResult, axis: LinearAxis, scale: Scale, grid: list[float]) -> Row:
    segments = _segments(result.parts)
    wall = scale.text(result.parts.wall_seconds)
    spoken = ", ".join(f"{name} {scale.text(measured)}" for _, name, _, measured in segments)
    drawing = Drawing(_BAR_HEIGHT, f"{result.name}: {wall} for an epoch: {spoken}")
    draw_grid(drawing, grid)
    disqualified = " disqualified" if result.disqualified else ""
    rights = list(accumulate(axis.position(drawn) for _, _, drawn, _ in segments))
    lefts = [0.0, *rights[:-1]]
    for left, right, (kind, name, _, measured) in zip(lefts, rights, segments, strict=True):
        drawing.bar(left, right, _BAR_TOP, _BAR_BOTTOM, f"part {kind}{disqualified}", f"{name}: {scale.text(measured)}")
    if result.disqualified:
        drawing.bar(0, rights[-1], _BAR_TOP, _BAR_BOTTOM, "hatch")
    for left, right, (kind, name, _, measured) in zip(lefts, rights, segments, strict=True):
        words = scale.text(measured)
        drawing.label(left, right, 25.5, (f"{name} {words}", words), f"on-{kind}{disqualified}")
    warning = f"disqualified: {'; '.join(result.disqualified)}" if result.disqualified else ""
    return Row(result.name, wall, drawing.markup(), warning)


def _segments(parts: Parts) -> list[tuple[str, str, float, float]]:
    """Return the segments of a bar, each as (kind, name, seconds drawn, seconds measured).

    Negative interference is noise: compute was faster in the epoch than alone. Then compute is drawn as long as it was
    in the epoch and no interference is drawn, so that the bar still ends at the wall time.
    """
    interference = parts.interference_seconds
    rest = parts.harness_seconds + parts.unexplained_seconds
    return [
        ("compute", "compute alone", parts.compute_alone_seconds + min(interference, 0.0), parts.compute_alone_seconds),
        ("interference", "interference", max(interference, 0.0), interference),
        ("stall", "stall", parts.stall_seconds, parts.stall_seconds),
        ("rest", "rest", max(rest, 0.0), rest),
    ]


_RATIO_HEIGHT = 36
# CSS class of each verdict. Verdicts that are not listed have the class "unclear", which is grey.
_VERDICT_KINDS = {"faster": "shown", "slower": "shown", "reference": "reference", "disqualified": "disqualified"}


def ratio_intervals(report: Report) -> RowChart | None:
    """Draw the ratios of wall times as dots with intervals on a logarithmic axis; return None if there is no ratio."""
    intervals = [each.ratio for each in report.strategies if each.ratio is not None]
    if not intervals:
        return None
    bounds = [bound for each in intervals for bound in (each.low, each.estimate, each.high) if bound is not None]
    axis = RatioAxis.around(bounds)
    marks = [(axis.position(mark), f"{mark:g}×") for mark in axis.marks()]  # noqa: RUF001  the sign for times
    return RowChart(
        [_ratio_row(each, axis, [place for place, _ in marks]) for each in report.strategies], draw_axis(marks)
    )


def describe_interval(interval: Interval | None) -> str:
    """Return an interval as text such as "0.24 (0.22 to 0.28)"; without bounds only the estimate."""
    estimate, ends = ratio(None if interval is None else interval.estimate), bounds(interval)
    return f"{estimate} ({ends})" if ends else estimate


def _ratio_row(result: StrategyResult, axis: RatioAxis, grid: list[float]) -> Row:
    summary = _describe_ratio(result)
    drawing = Drawing(_RATIO_HEIGHT, f"{result.name}: {summary}")
    draw_grid(drawing, grid)
    draw_grid(drawing, [axis.position(1)], "one")
    kind, middle = _VERDICT_KINDS.get(result.verdict, "unclear"), _RATIO_HEIGHT / 2
    if result.verdict == "reference":
        drawing.dot(axis.position(1), middle, 6, "point reference", summary)
    elif result.ratio is not None:
        if result.ratio.low is not None and result.ratio.high is not None:
            low, high = axis.position(result.ratio.low), axis.position(result.ratio.high)
            drawing.line(low, middle, high, middle, f"whisker {kind}")
            for end in (low, high):
                drawing.line(end, middle - 5, end, middle + 5, f"whisker end {kind}")
        drawing.dot(axis.position(result.ratio.estimate), middle, 6, f"point {kind}", summary)
    return Row(result.name, summary, drawing.markup())


def _describe_ratio(result: StrategyResult) -> str:
    if result.verdict == "reference":
        return "reference: 1 by definition"
    if result.ratio is None:
        return result.verdict
    level = f", {result.sameness.describe()}" if result.is_foreign and result.sameness is not None else ""
    return f"{describe_interval(result.ratio)}, {result.verdict}{level}"


_LANE_HEIGHT, _LANE_TOP, _LANE_BOTTOM = 24, 3, 21
MAX_BATCHES_SHOWN = 12
# The axis ends with the slowest strategy, but after at most this multiple of the time of the fastest one, which would
# otherwise be too small to see.
_MAX_TIMES_FASTEST = 3.0


@dataclass(frozen=True)
class Lanes:
    """Lanes of one strategy: compute first, then each loading thread.

    Attributes
    ----------
    name : str
        Name of the strategy.
    note : str
        Reason if no loading is drawn; otherwise empty.
    rows : list of Row
        The lanes.
    batches : int
        Batches drawn.
    until, waiting, computing : str
        End of the drawing, and the time spent waiting and computing until then.
    """

    name: str
    note: str
    rows: list[Row]
    batches: int
    until: str
    waiting: str
    computing: str


@dataclass(frozen=True)
class OverlapLanes:
    """Lanes of all strategies over one time axis."""

    strategies: list[Lanes]
    axis: Markup


def overlap_lanes(report: Report) -> OverlapLanes | None:
    """Draw the first `MAX_BATCHES_SHOWN` batches of each timeline; return None if no timeline has a batch."""
    timelines = [each for each in report.timelines if each.computes]
    if not timelines:
        return None
    ends = [each.computes[:MAX_BATCHES_SHOWN][-1][1] for each in timelines]
    axis = LinearAxis(min(max(ends), _MAX_TIMES_FASTEST * min(ends)))
    scale = time_scale([axis.end])
    marks = [(axis.position(mark), scale.mark(mark)) for mark in axis.marks(scale.size)]
    grid = [place for place, _ in marks]
    kinds = {each.name: each.strategy for each in report.strategies}
    return OverlapLanes([_lanes(each, kinds[each.strategy], axis, grid) for each in timelines], draw_axis(marks))


def _lanes(timeline: Timeline, strategy: str, axis: LinearAxis, grid: list[float]) -> Lanes:
    end = min(timeline.computes[:MAX_BATCHES_SHOWN][-1][1], axis.end)
    computes = [span for span in timeline.computes if span[0] < end]
    waits = [span for span in timeline.waits if span[0] < end]
    waiting, computing = (sum(min(b, end) - a for a, b in spans) for spans in (waits, computes))
    drawing = Drawing(
        _LANE_HEIGHT,
        f"{timeline.strategy}, compute: {len(computes)} batches in {seconds(end)}, with {seconds(waiting)} of waiting",
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
        note="" if threads else _reason_without_lanes(strategy),
        rows=[Row("compute", "", drawing.markup()), *loads],
        batches=len(computes),
        until=seconds(end),
        waiting=f"{seconds(waiting)} ({percent(waiting / end)})",
        computing=f"{seconds(computing)} ({percent(computing / end)})",
    )


def _load_row(timeline: Timeline, thread: int, name: str, axis: LinearAxis, end: float, grid: list[float]) -> Row:
    loads = [(a, b, batch) for each, a, b, batch in timeline.loads if each == thread and a < end]
    busy = sum(min(b, end) - a for a, b, _ in loads)
    drawing = Drawing(_LANE_HEIGHT, f"{timeline.strategy}, {name}: loads for {seconds(busy)}")
    draw_grid(drawing, grid)
    for start, stop, batch in loads:
        left, right = axis.position(start), axis.position(min(stop, end))
        drawing.bar(left, right, _LANE_TOP, _LANE_BOTTOM, "part load", f"loads batch {batch}: {seconds(stop - start)}")
        drawing.label(left, right, 16, (f"batch {batch}", str(batch)), "on-load")
    return Row(name, "", drawing.markup())


def _draw_spans(
    drawing: Drawing, axis: LinearAxis, kind: str, does: str, spans: Sequence[tuple[float, float]], end: float
) -> None:
    for start, stop in spans:
        left, right = axis.position(start), axis.position(min(stop, end))
        drawing.bar(left, right, _LANE_TOP, _LANE_BOTTOM, f"part {kind}", f"{does} {seconds(stop - start)}")


def _reason_without_lanes(strategy: str) -> str:
    if strategies.find(strategy).is_foreign:
        return "How a user's loader loads is not traced."
    if strategies.find(strategy).uses_processes:
        return "Its worker processes load, which is not traced."
    return "The training loop itself loads: while it waits, it loads."


# Number of distinguishable colours; further stages reuse them in order.
_COLOURS = 7
_STAGE_BAR_HEIGHT = 40


@dataclass(frozen=True)
class StagePart:
    """One stage: a row of the table below the bar. `kind` is the CSS class of its colour."""

    name: str
    kind: str
    seconds: str
    share: str


def stage_bar(profile: ProfileResult) -> Markup:
    """Draw the time per record as one bar, with all stages from left to right."""
    parts, total = stage_parts(profile), _record_seconds(profile)
    drawing = Drawing(
        _STAGE_BAR_HEIGHT,
        f"Time per record in one thread, {time_scale([total]).text(total)} in all",
        "; ".join(f"{each.name}: {each.seconds}, {each.share}" for each in parts),
    )
    left = 0.0
    for part, stage in zip(parts, profile.stages, strict=True):
        right = left + stage.seconds_per_record / total * 100
        drawing.bar(
            left, right, 2, _STAGE_BAR_HEIGHT - 2, f"part {part.kind}", f"{part.name}: {part.seconds}, {part.share}"
        )
        drawing.label(left, right, 24.5, (f"{part.name} {part.seconds}", part.name), f"on-{part.kind}")
        left = right
    return drawing.markup()


def stage_parts(profile: ProfileResult) -> list[StagePart]:
    """Return the time and share of each stage."""
    scale, total = time_scale([_record_seconds(profile)]), _record_seconds(profile)
    return [
        StagePart(
            stage.name,
            f"stage-{index % _COLOURS}",
            scale.text(stage.seconds_per_record),
            percent(stage.seconds_per_record / total),
        )
        for index, stage in enumerate(profile.stages)
    ]


def _record_seconds(profile: ProfileResult) -> float:
    return sum(each.seconds_per_record for each in profile.stages)


def stage_name(result: StageResult, among: list[StageResult]) -> str:
    """Return the name of the stage, with the format if the stage occurs several times in `among`."""
    alike = [each for each in among if each.stage == result.stage]
    return result.stage if len(alike) == 1 else f"{result.stage}, {result.format or result.strategy}"
