"""Charts of a report as places on the page, in percent of its width: the template draws them with CSS alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, floor, log, log10
from typing import TYPE_CHECKING

from etl.measuring.statistics import Interval
from etl.units import bounds, percent, ratio, time_scale

if TYPE_CHECKING:
    from etl.comparison.judge.report import Parts, ProfileResult, ReportData, StageResult, StrategyResult


@dataclass(frozen=True)
class ChartBar:
    """A part of a bar: its width in percent, its quantity as text, and as `kind` the CSS class of its colour."""

    kind: str
    name: str
    width: float
    text: str


@dataclass(frozen=True)
class Dot:
    """An estimate, and its interval if there is one: places in percent. `kind` is the CSS class of its colour."""

    kind: str
    place: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ChartRow:
    """A row of a chart: bars from left to right, or a dot.

    A screen reader says what is `spoken`. The `warning` is the reason why the row does not count; otherwise empty.
    """

    name: str
    summary: str
    spoken: str
    bars: list[ChartBar] = field(default_factory=list)
    dot: Dot | None = None
    warning: str = ""


@dataclass(frozen=True)
class Chart:
    """Rows from top to bottom, the place and text of each mark of their common axis, and the place of the ratio 1."""

    rows: list[ChartRow]
    marks: list[tuple[float, str]] = field(default_factory=list)
    one: float | None = None


def epoch_bars(report: ReportData) -> Chart:
    """Return the parts of an epoch's wall time: one row per strategy."""
    walls = [each.parts.wall_seconds for each in report.strategies]
    longest, scale = max(walls), time_scale(walls)
    rows = []
    for result in report.strategies:
        bars = [
            ChartBar(kind, name, drawn / longest * 100, scale.text(measured))
            for kind, name, drawn, measured in bar_segments(result.parts)
        ]
        wall = scale.text(result.parts.wall_seconds)
        spoken = ", ".join(f"{each.name} {each.text}" for each in bars)
        warning = f"disqualified: {'; '.join(result.disqualified)}" if result.disqualified else ""
        bars = [each for each in bars if each.width > 0]
        rows.append(ChartRow(result.name, wall, f"{result.name}: {wall} for an epoch: {spoken}", bars, warning=warning))
    return Chart(rows, [(mark / longest * 100, scale.mark(mark)) for mark in linear_marks(longest, scale.size)])


def bar_segments(parts: Parts) -> list[tuple[str, str, float, float]]:
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


# CSS class of each verdict. Verdicts that are not listed have the class "unclear", which is grey.
_VERDICT_KINDS = {"faster": "shown", "slower": "shown", "reference": "reference", "disqualified": "disqualified"}


def ratio_intervals(report: ReportData) -> Chart | None:
    """Return the ratios of wall times and their intervals on a logarithmic axis; None if there is no ratio."""
    intervals = [each.ratio for each in report.strategies if each.ratio is not None]
    if not intervals:
        return None
    known = [bound for each in intervals for bound in (each.low, each.estimate, each.high) if bound is not None]
    axis = RatioAxis.around(known)
    marks = [(axis.position(mark), f"{mark:g}×") for mark in axis.marks()]  # noqa: RUF001  the sign for times
    return Chart([_ratio_row(each, axis) for each in report.strategies], marks, axis.position(1))


def describe_interval(interval: Interval | None) -> str:
    """Return an interval as text such as "0.24 (0.22 to 0.28)"; without bounds only the estimate."""
    estimate, ends = ratio(None if interval is None else interval.estimate), bounds(interval)
    return f"{estimate} ({ends})" if ends else estimate


def _ratio_row(result: StrategyResult, axis: RatioAxis) -> ChartRow:
    kind, dot = _VERDICT_KINDS.get(result.verdict, "unclear"), None
    if result.verdict == "reference":
        dot = Dot(kind, axis.position(1))
    elif result.ratio is not None:
        dot = Dot(kind, axis.position(result.ratio.estimate))
        if result.ratio.low is not None and result.ratio.high is not None:
            dot = Dot(kind, dot.place, axis.position(result.ratio.low), axis.position(result.ratio.high))
    summary = _describe_ratio(result)
    return ChartRow(result.name, summary, f"{result.name}: {summary}", dot=dot)


def _describe_ratio(result: StrategyResult) -> str:
    if result.verdict == "reference":
        return "reference: 1 by definition"
    if result.ratio is None:
        return result.verdict
    level = f", {result.sameness.describe()}" if result.is_foreign and result.sameness is not None else ""
    return f"{describe_interval(result.ratio)}, {result.verdict}{level}"


# Number of distinguishable colours; further stages reuse them in order.
_COLOURS = 7


def stage_bar(profile: ProfileResult) -> ChartRow:
    """Return the time per record as one row, with all stages from left to right."""
    total = sum(each.seconds_per_record for each in profile.stages)
    scale = time_scale([total])
    bars = [
        ChartBar(
            f"stage-{index % _COLOURS}",
            stage.name,
            stage.seconds_per_record / total * 100,
            scale.text(stage.seconds_per_record),
        )
        for index, stage in enumerate(profile.stages)
    ]
    parts = "; ".join(f"{each.name}: {each.text}, {percent(each.width / 100)}" for each in bars)
    return ChartRow("", "", f"Time per record in one thread, {scale.text(total)} in all: {parts}", bars)


def stage_name(result: StageResult, among: list[StageResult]) -> str:
    """Return the name of the stage, with the format if the stage occurs several times in `among`."""
    alike = [each for each in among if each.stage == result.stage]
    return result.stage if len(alike) == 1 else f"{result.stage}, {result.format or result.strategy}"


def linear_marks(end: float, size: float = 1.0) -> list[float]:
    """Return at most five marks from 0 to `end`, which is above 0: round numbers in a unit of `size`."""
    step = _round_up(end / size / 4) * size
    return [step * count for count in range(floor(end / step * (1 + 1e-9)) + 1)]


# Minimum distance between marks of a ratio axis, in percent of its length, so that their labels fit on a phone.
_MIN_MARK_DISTANCE = 14.0
_MAX_MARKS = 8


@dataclass(frozen=True)
class RatioAxis:
    """A logarithmic axis for ratios: 0.5 and 2 are equally far from 1."""

    low: float
    high: float

    @classmethod
    def around(cls, ratios: Iterable[float]) -> RatioAxis:
        """Return the axis that shows 1 and all of `ratios`, which are above 0, with a small margin."""
        shown = [1.0, *ratios]
        room = max((max(shown) / min(shown)) ** 0.05, 1.02)
        return cls(min(shown) / room, max(shown) * room)

    def position(self, ratio: float) -> float:
        """Return the position of `ratio` in percent."""
        return log(ratio / self.low) / log(self.high / self.low) * 100

    def marks(self) -> list[float]:
        """Return 1 and as many other round ratios as fit."""
        for step in (0.01, 0.02, 0.05, 0.1, 0.25):
            counts = range(max(ceil(self.low / step), 1), floor(self.high / step) + 1)
            if len(counts) <= _MAX_MARKS and self._have_room([step * count for count in counts]):
                return [step * count for count in counts]
        powers = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        for mantissas in ((1, 2, 5), (1, 3), (1,)):
            marks = [mantissa * 10.0**power for power in powers for mantissa in mantissas]
            marks = [mark for mark in marks if self.low <= mark <= self.high]
            if self._have_room(marks):
                return marks
        return [1.0]

    def _have_room(self, marks: list[float]) -> bool:
        places = [self.position(mark) for mark in marks]
        return any(abs(mark - 1) < 1e-9 for mark in marks) and all(
            b - a >= _MIN_MARK_DISTANCE for a, b in pairwise(places)
        )


def _round_up(number: float) -> float:
    power = 10.0 ** floor(log10(number))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= number * (1 - 1e-9))
