"""The chart of a tuned strategy: what a faster epoch costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from etl.comparison.drawing import Anchor, Drawing, RangeAxis, place_names
from etl.comparison.tuning.results import Costs, TriedConfiguration, TunedStrategy
from etl.comparison.tuning.table import mark_of, settings_of
from etl.comparison.units import Scale, byte_scale, nbytes, seconds, time_scale

_TOP, _BOTTOM, _HEIGHT = 34, 324, 372
_ANCHORS: dict[int, Anchor] = {1: "start", 0: "middle", -1: "end"}
# More names than this would cover each other.
_MAX_NAMES = 12
# Smaller differences between costs are noise.
_SIMILAR = 1.05


@dataclass(frozen=True)
class _Cost:
    """A cost that the horizontal axis can show."""

    name: str
    of: Callable[[Costs], float]
    scale: Callable[[list[float]], Scale]


_COSTS = (
    _Cost("disk space", lambda costs: costs.disk_nbytes, byte_scale),
    _Cost("peak memory", lambda costs: costs.memory_nbytes, byte_scale),
    _Cost("time to prepare", lambda costs: costs.prepare_seconds, time_scale),
)


@dataclass(frozen=True)
class CostChart:
    """A chart of all configurations of a strategy.

    Attributes
    ----------
    cost : str
        The cost on the horizontal axis.
    drawing : Markup
        The chart.
    """

    cost: str
    drawing: Markup


def cost_chart(strategy: TunedStrategy) -> CostChart | None:
    """Draw a point for each configuration: its epoch against the first other cost that differs between them.

    Returns None if there is nothing to compare: one configuration, or no other cost that differs.
    """
    tried = strategy.configurations
    cost = next((each for each in _COSTS if _differs([each.of(one.costs) for one in tried])), None)
    if cost is None:
        return None
    across = RangeAxis.around(cost.of(each.costs) for each in tried)
    upwards = RangeAxis.around(each.costs.seconds for each in tried)
    points = [(across.position(cost.of(each.costs)), _height(upwards, each.costs.seconds)) for each in tried]
    spoken = "; ".join(_describe(index, each) for index, each in enumerate(tried))
    drawing = Drawing(_HEIGHT, f"{strategy.name}: seconds of an epoch against {cost.name}", spoken)
    _draw_axes(drawing, cost, across, upwards, tried)
    _draw_front(drawing, [point for point, each in zip(points, tried, strict=True) if each.is_on_front])
    _draw_names(drawing, strategy, points)
    # The fastest last, and with it what matters most, so that it is above the others.
    order = sorted(range(len(tried)), key=lambda index: (bool(mark_of(strategy, tried[index])), -index))
    for index in order:
        each, (x, y) = tried[index], points[index]
        kind = "front" if each.is_on_front else "dropped" if each.dropped else "tried"
        drawing.marker(x, y, _shape(strategy, each), f"point {kind}", _describe(index, each))
    return CostChart(cost.name, drawing.markup())


def _differs(costs: list[float]) -> bool:
    return max(costs) > min(costs) * _SIMILAR


def _height(axis: RangeAxis, value: float) -> float:
    return _BOTTOM - axis.position(value) / 100 * (_BOTTOM - _TOP)


def _shape(strategy: TunedStrategy, configuration: TriedConfiguration) -> str:
    mark = mark_of(strategy, configuration)
    if mark:
        return "diamond" if mark == "given" else "star"
    return "cross" if configuration.dropped else "circle"


def _draw_axes(
    drawing: Drawing, cost: _Cost, across: RangeAxis, upwards: RangeAxis, tried: list[TriedConfiguration]
) -> None:
    epochs = time_scale(each.costs.seconds for each in tried)
    costs = cost.scale([cost.of(each.costs) for each in tried])
    for mark in upwards.marks(epochs.size):
        y = _height(upwards, mark)
        drawing.line(0, y, 100, y, "grid")
        # No unit suits all marks of a wide range.
        scale = time_scale([mark]) if upwards.is_logarithmic else epochs
        drawing.text(100, y + 4, scale.mark(mark), "mark", "start", shift=8)
    for mark in across.marks(costs.size):
        drawing.line(across.position(mark), _BOTTOM, across.position(mark), _BOTTOM + 5, "grid")
        scale = cost.scale([mark]) if across.is_logarithmic else costs
        drawing.text(across.position(mark), _BOTTOM + 19, scale.mark(mark), "mark")
    scales = ["logarithmic" if axis.is_logarithmic else "" for axis in (upwards, across)]
    drawing.text(0, 14, ", ".join(filter(None, ("↑ time of an epoch", scales[0]))), "axis", "start")
    drawing.text(100, _HEIGHT - 6, f"{', '.join(filter(None, (cost.name, scales[1])))} →", "axis", "end")


def _draw_front(drawing: Drawing, points: list[tuple[float, float]]) -> None:
    """Draw steps through the points that are best in the two costs that are drawn."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or y > best[-1][1]:
            best.append((x, y))
    for (x, y), (next_x, next_y) in pairwise(best):
        drawing.line(x, y, next_x, y, "front-line")
        drawing.line(next_x, y, next_x, next_y, "front-line")


def _draw_names(drawing: Drawing, strategy: TunedStrategy, points: list[tuple[float, float]]) -> None:
    """Write the numbers that the table has beside the given, the chosen and the fastest on the front."""
    texts: list[str] = []
    for index, each in enumerate(strategy.configurations):
        mark = mark_of(strategy, each)
        named = mark or (each.is_on_front and sum(map(bool, texts)) < _MAX_NAMES)
        texts.append(f"{index + 1} {mark}".strip() if named else "")
    for (x, y), name in zip(points, place_names(points, texts, _TOP, _BOTTOM), strict=True):
        if name.words:
            if name.y != y:
                drawing.pointer(x, y, name.shift * 0.8, name.y, "leader")
            anchor = _ANCHORS[(name.shift > 0) - (name.shift < 0)]
            drawing.text(x, name.y + 4, name.words, "point-name", anchor, name.shift)


def _describe(index: int, configuration: TriedConfiguration) -> str:
    costs = configuration.costs
    words = [f"{index + 1}, {settings_of(configuration)}: {seconds(costs.seconds)}"]
    if costs.disk_nbytes or costs.prepare_seconds:
        words.append(f"{nbytes(costs.disk_nbytes)} on disk, prepared in {seconds(costs.prepare_seconds)}")
    words.append(f"{nbytes(costs.memory_nbytes)} of memory")
    if configuration.dropped:
        words.append(f"dropped: {configuration.dropped}")
    return ", ".join(words)
