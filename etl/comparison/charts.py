"""Where the wall time of an epoch goes: one bar for each strategy.

The wall time of each strategy over the reference's: the median, and the interval it is known to lie in.

A stretch of batches in time: what is loaded while something is computed.

What each stage of the raw pipeline takes of a record's time, as one bar.

Where to cut the pipeline: how fast loading alone is, against the disk it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from markupsafe import Markup

from etl import strategies
from etl.comparison.drawing import (
    Anchor,
    Drawing,
    LinearAxis,
    RatioAxis,
    Row,
    RowChart,
    draw_axis,
    draw_grid,
    place_names,
)
from etl.comparison.report import Parts, ProfileResult, Report, StageResult, StrategyResult, Timeline
from etl.comparison.units import Scale, bounds, byte_scale, digits, nbytes, percent, ratio, seconds, time_scale
from etl.measuring.statistics import Interval

_BAR_HEIGHT, _BAR_TOP, _BAR_BOTTOM = 42, 8, 34


def epoch_bars(report: Report) -> RowChart:
    """Bars of compute alone, interference, stall and the rest, which end at the wall time."""
    walls = [each.parts.wall_seconds for each in report.strategies]
    axis, scale = LinearAxis(max(walls)), time_scale(walls)
    marks = [(axis.position(mark), scale.mark(mark)) for mark in axis.marks(scale.size)]
    return RowChart(
        [_epoch_row(each, axis, scale, [place for place, _ in marks]) for each in report.strategies], draw_axis(marks)
    )


def _epoch_row(result: StrategyResult, axis: LinearAxis, scale: Scale, grid: list[float]) -> Row:
    segments = _segments(result.parts)
    wall = scale.text(result.parts.wall_seconds)
    spoken = ", ".join(f"{name} {scale.text(figure)}" for _, name, _, figure in segments)
    drawing = Drawing(_BAR_HEIGHT, f"{result.name}: {wall} for an epoch: {spoken}")
    draw_grid(drawing, grid)
    disqualified = " disqualified" if result.disqualified else ""
    rights = list(accumulate(axis.position(drawn) for _, _, drawn, _ in segments))
    lefts = [0.0, *rights[:-1]]
    for left, right, (kind, name, _, figure) in zip(lefts, rights, segments, strict=True):
        drawing.bar(left, right, _BAR_TOP, _BAR_BOTTOM, f"part {kind}{disqualified}", f"{name}: {scale.text(figure)}")
    if result.disqualified:
        drawing.bar(0, rights[-1], _BAR_TOP, _BAR_BOTTOM, "hatch")
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


_RATIO_HEIGHT = 36
# What the verdicts are drawn as: only a difference that was shown has the colour.
_VERDICT_KINDS = {"faster": "shown", "slower": "shown", "reference": "reference", "disqualified": "disqualified"}


def ratio_intervals(report: Report) -> RowChart | None:
    """A dot for the median and a whisker for the interval, on a logarithmic axis; None without any ratio."""
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
    """`0.24 (0.22 to 0.28)`; without bounds, where there are none, the median alone."""
    estimate, ends = ratio(None if interval is None else interval.estimate), bounds(interval)
    return f"{estimate} ({ends})" if ends else estimate


def _ratio_row(result: StrategyResult, axis: RatioAxis, grid: list[float]) -> Row:
    figures = _describe_ratio(result)
    drawing = Drawing(_RATIO_HEIGHT, f"{result.name}: {figures}")
    draw_grid(drawing, grid)
    draw_grid(drawing, [axis.position(1)], "one")
    kind, middle = _VERDICT_KINDS.get(result.verdict, "unclear"), _RATIO_HEIGHT / 2
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


def _describe_ratio(result: StrategyResult) -> str:
    if result.verdict == "reference":
        return "reference: 1 by definition"
    return result.verdict if result.ratio is None else f"{describe_interval(result.ratio)}, {result.verdict}"


_LANE_HEIGHT, _LANE_TOP, _LANE_BOTTOM = 24, 3, 21
MAX_BATCHES_SHOWN = 12
# The axis ends where the slowest strategy has had its batches, or after so many times what the fastest takes: otherwise
# nothing could be seen of the fastest.
_MAX_TIMES_FASTEST = 3.0


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
    """The first batches of each timeline, at most `MAX_BATCHES_SHOWN`; None where none has any."""
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


def _why_no_threads(strategy: str) -> str:
    if strategies.find(strategy).uses_processes:
        return "Its worker processes load, which cannot be seen from here."
    return "It loads in the training loop itself: while the loop waits, it loads."


# So many colours can be told apart; stages beyond them begin with the first again.
_COLOURS = 7
_STAGE_BAR_HEIGHT = 40


@dataclass(frozen=True)
class StagePart:
    """A row of the table below the bar, with the class of its colour."""

    name: str
    kind: str
    seconds: str
    share: str


def stage_bar(profile: ProfileResult) -> Markup:
    """The bar, of all stages from left to right."""
    parts, total = stage_parts(profile), _record_seconds(profile)
    drawing = Drawing(
        _STAGE_BAR_HEIGHT,
        f"Seconds of one record in one thread, {time_scale([total]).text(total)} in all",
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
    """What the bar shows, stage by stage."""
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


_POINTS_TOP, _POINTS_BOTTOM, _POINTS_HEIGHT = 34, 324, 372
_ANCHORS: dict[int, Anchor] = {1: "start", 0: "middle", -1: "end"}


def stage_points(report: Report) -> Markup:
    """A labelled point for each stage: samples/s upwards, bytes on disk to the right, both from 0."""
    stages = report.stages
    across = LinearAxis(max([each.nbytes for each in stages] + [1]) * 1.04)
    upwards = LinearAxis(max(each.etl_samples_per_second for each in stages) * 1.08)
    scale = byte_scale(each.nbytes for each in stages)
    spoken = "; ".join(f"{stage_name(each, stages)}: {_describe_stage(each)}" for each in stages)
    drawing = Drawing(_POINTS_HEIGHT, "Loading alone, samples per second, against bytes on disk", spoken)
    for mark in upwards.marks():
        y = _point_height(upwards, mark)
        drawing.line(0, y, 100, y, "grid")
        drawing.text(100, y + 4, f"{mark:,.10g}/s" if mark else "0", "mark", "start", shift=8)
    for mark in across.marks(scale.size):
        drawing.line(across.position(mark), _POINTS_BOTTOM, across.position(mark), _POINTS_BOTTOM + 5, "grid")
        drawing.text(across.position(mark), _POINTS_BOTTOM + 19, scale.mark(mark), "mark")
    drawing.text(0, 14, "↑ samples per second, loading alone", "axis", "start")
    drawing.text(100, _POINTS_HEIGHT - 6, "disk taken by the store →", "axis", "end")
    _draw_points(drawing, stages, across, upwards)
    return drawing.markup()


def stage_name(result: StageResult, among: list[StageResult]) -> str:
    """The stage's name, with the format where several formats of one stage are compared."""
    alike = [each for each in among if each.stage == result.stage]
    return result.stage if len(alike) == 1 else f"{result.stage}, {result.format or result.strategy}"


def _draw_points(drawing: Drawing, stages: list[StageResult], across: LinearAxis, upwards: LinearAxis) -> None:
    points = [(across.position(each.nbytes), _point_height(upwards, each.etl_samples_per_second)) for each in stages]
    texts = [f"{stage_name(each, stages)}{', disqualified' if each.disqualified else ''}" for each in stages]
    for (x, y), name in zip(points, place_names(points, texts, _POINTS_TOP, _POINTS_BOTTOM), strict=True):
        if name.y != y:
            drawing.pointer(x, y, name.shift * 0.8, name.y, "leader")
        anchor = _ANCHORS[(name.shift > 0) - (name.shift < 0)]
        drawing.text(x, name.y + 4, name.words, "point-name", anchor, name.shift)
    for result, (x, y) in zip(stages, points, strict=True):
        kind = "disqualified" if result.disqualified else "reference" if result.stage == "raw" else "shown"
        drawing.dot(x, y, 7, f"point {kind}", f"{stage_name(result, stages)}: {_describe_stage(result)}")


def _describe_stage(result: StageResult) -> str:
    disqualified = f", disqualified: {'; '.join(result.disqualified)}" if result.disqualified else ""
    return f"{digits(result.etl_samples_per_second)} samples/s, {nbytes(result.nbytes)}{disqualified}"


def _point_height(axis: LinearAxis, value: float) -> float:
    return _POINTS_BOTTOM - axis.position(value) / 100 * (_POINTS_BOTTOM - _POINTS_TOP)
