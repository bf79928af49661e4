"""Where to cut the pipeline: how fast loading alone is, against the disk it takes."""

from __future__ import annotations

from markupsafe import Markup

from etl.comparison.charts.axis import LinearAxis
from etl.comparison.charts.drawing import Anchor, Drawing
from etl.comparison.charts.point_names import place_names
from etl.comparison.report import Report, StageResult
from etl.comparison.units import byte_scale, digits, nbytes

TOP, BOTTOM, HEIGHT = 34, 324, 372
ANCHORS: dict[int, Anchor] = {1: "start", 0: "middle", -1: "end"}


def stage_points(report: Report) -> Markup:
    """A labelled point for each stage: samples/s upwards, bytes on disk to the right, both from 0."""
    stages = report.stages
    across = LinearAxis(max([each.nbytes for each in stages] + [1]) * 1.04)
    upwards = LinearAxis(max(each.etl_samples_per_second for each in stages) * 1.08)
    scale = byte_scale(each.nbytes for each in stages)
    spoken = "; ".join(f"{stage_name(each, stages)}: {_describe(each)}" for each in stages)
    drawing = Drawing(HEIGHT, "Loading alone, samples per second, against bytes on disk", spoken)
    for mark in upwards.marks():
        y = _height(upwards, mark)
        drawing.line(0, y, 100, y, "grid")
        drawing.text(100, y + 4, f"{mark:,.10g}/s" if mark else "0", "mark", "start", shift=8)
    for mark in across.marks(scale.size):
        drawing.line(across.position(mark), BOTTOM, across.position(mark), BOTTOM + 5, "grid")
        drawing.text(across.position(mark), BOTTOM + 19, scale.mark(mark), "mark")
    drawing.text(0, 14, "↑ samples per second, loading alone", "axis", "start")
    drawing.text(100, HEIGHT - 6, "disk taken by the store →", "axis", "end")
    _draw_points(drawing, stages, across, upwards)
    return drawing.markup()


def stage_name(result: StageResult, among: list[StageResult]) -> str:
    """The stage's name, with the format where several formats of one stage are compared."""
    alike = [each for each in among if each.stage == result.stage]
    return result.stage if len(alike) == 1 else f"{result.stage}, {result.format or result.strategy}"


def _draw_points(drawing: Drawing, stages: list[StageResult], across: LinearAxis, upwards: LinearAxis) -> None:
    points = [(across.position(each.nbytes), _height(upwards, each.etl_samples_per_second)) for each in stages]
    texts = [f"{stage_name(each, stages)}{', disqualified' if each.disqualified else ''}" for each in stages]
    for (x, y), name in zip(points, place_names(points, texts, TOP, BOTTOM), strict=True):
        if name.y != y:
            drawing.pointer(x, y, name.shift * 0.8, name.y, "leader")
        anchor = ANCHORS[(name.shift > 0) - (name.shift < 0)]
        drawing.text(x, name.y + 4, name.words, "point-name", anchor, name.shift)
    for result, (x, y) in zip(stages, points, strict=True):
        kind = "disqualified" if result.disqualified else "reference" if result.stage == "raw" else "shown"
        drawing.dot(x, y, 7, f"point {kind}", f"{stage_name(result, stages)}: {_describe(result)}")


def _describe(result: StageResult) -> str:
    disqualified = f", disqualified: {'; '.join(result.disqualified)}" if result.disqualified else ""
    return f"{digits(result.etl_samples_per_second)} samples/s, {nbytes(result.nbytes)}{disqualified}"


def _height(axis: LinearAxis, value: float) -> float:
    return BOTTOM - axis.position(value) / 100 * (BOTTOM - TOP)
