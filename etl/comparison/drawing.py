"""SVG pictures whose text keeps its size, on a phone as on a wide screen.

Charts of rows: a name, what is said beside it, and a drawing, one below the other over a common axis.

Axes: where a figure stands on a chart, and which round figures are marked on it.

Names beside points, so that none covers another name or point at any width of the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise, product
from math import ceil, floor, log, log10
from typing import Literal
from xml.etree import ElementTree

from markupsafe import Markup

# The layouts of page.css, and how many pixels a drawing is at least wide in each: two beside the names, one below them.
LAYOUTS = {"wide": 700, "medium": 480, "narrow": 290}
_LETTER_WIDTH = 7.2

Anchor = Literal["start", "middle", "end"]


class Drawing:
    """A picture `height` pixels high and as wide as its place on the page: x is in percent of the width, y in pixels.

    A `viewBox` would scale the text with the picture, until nobody can read it on a phone. `title` says in words what
    is drawn, for those who do not see it; without one, screen readers pass over the picture. The `kind` of each shape
    is its class in page.css.
    """

    def __init__(self, height: float, title: str = "", description: str = "") -> None:
        hidden = {"role": "img"} if title else {"aria-hidden": "true"}
        self._root = ElementTree.Element("svg", {"width": "100%", "height": f"{height:g}", **hidden})
        for tag, words in (("title", title), ("desc", description)):
            if words:
                ElementTree.SubElement(self._root, tag).text = words

    def bar(self, left: float, right: float, top: float, bottom: float, kind: str, tooltip: str = "") -> None:
        """A filled rectangle; nothing where `right` is not beyond `left`. What is hardly a pixel wide is `thin` too."""
        if right > left:
            if right - left < 0.5:
                # Its edge is drawn outside it.
                kind, top, bottom = f"{kind} thin", top + 1, bottom - 1
            place = {
                "x": f"{left:.3f}%",
                "width": f"{right - left:.3f}%",
                "y": f"{top:g}",
                "height": f"{bottom - top:g}",
            }
            self._add("rect", kind, place, tooltip)

    def line(self, from_x: float, from_y: float, to_x: float, to_y: float, kind: str) -> None:
        """A straight line."""
        ends = {"x1": f"{from_x:.3f}%", "y1": f"{from_y:g}", "x2": f"{to_x:.3f}%", "y2": f"{to_y:g}"}
        self._add("line", kind, ends)

    def dot(self, x: float, y: float, radius: float, kind: str, tooltip: str = "") -> None:
        """A circle of `radius` pixels."""
        self._add("circle", kind, {"cx": f"{x:.3f}%", "cy": f"{y:g}", "r": f"{radius:g}"}, tooltip)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        kind: str,
        anchor: Anchor = "middle",
        shift: float = 0,
    ) -> None:
        """Words on the base line `y`, which start, end or have their middle `shift` pixels beside `x`."""
        place = {"x": f"{x:.3f}%", "y": f"{y:g}", "text-anchor": anchor, "dx": f"{shift:g}"}
        self._add("text", kind, place).text = words

    def label(self, left: float, right: float, y: float, texts: tuple[str, ...], kind: str) -> None:
        """In each layout the first of `texts`, the longest first, that has room between `left` and `right`."""
        shown: dict[str, list[str]] = {}
        for layout, pixels in LAYOUTS.items():
            room = (right - left) / 100 * pixels - 6
            words = next((each for each in texts if text_width(each) <= room), None)
            if words is not None:
                shown.setdefault(words, []).append(layout)
        for words, layouts in shown.items():
            only = "" if len(layouts) == len(LAYOUTS) else f" only {' '.join(layouts)}"
            self.text((left + right) / 2, y, words, f"{kind}{only}")

    def pointer(self, x: float, y: float, shift: float, to_y: float, kind: str) -> None:
        """A straight line from a point to `to_y`, `shift` pixels beside it."""
        # Percent and pixels do not add up in one attribute: inside a picture at the point, all is in pixels.
        inner = ElementTree.SubElement(self._root, "svg", {"x": f"{x:.3f}%", "y": f"{y:g}", "class": "at"})
        ends = {"x1": "0", "y1": "0", "x2": f"{shift:g}", "y2": f"{to_y - y:g}"}
        ElementTree.SubElement(inner, "line", {"class": kind, **ends})

    def markup(self) -> Markup:
        """The picture, to stand in an HTML page."""
        return Markup(ElementTree.tostring(self._root, encoding="unicode"))  # noqa: S704  the serialiser escapes

    def _add(self, tag: str, kind: str, attributes: dict[str, str], tooltip: str = "") -> ElementTree.Element:
        shape = ElementTree.SubElement(self._root, tag, {"class": kind, **attributes})
        if tooltip:
            ElementTree.SubElement(shape, "title").text = tooltip
        return shape


def text_width(words: str) -> float:
    """Pixels that `words` take at most: no common sans-serif font of 12 pixels has wider letters, on average."""
    return len(words) * _LETTER_WIDTH


AXIS_HEIGHT = 22


@dataclass(frozen=True)
class Row:
    """One row. `figures` is what the drawing shows in short; `warning` why it does not count."""

    name: str
    figures: str
    drawing: Markup
    warning: str = ""


@dataclass(frozen=True)
class RowChart:
    """Rows from top to bottom, and the axis below them."""

    rows: list[Row]
    axis: Markup


def draw_grid(drawing: Drawing, places: Iterable[float], kind: str = "grid") -> None:
    """Thin lines down to the row below, however many lines of text stand beside the drawing: page.css cuts them off."""
    for place in places:
        drawing.line(place, 0, place, 1000, kind)


def draw_axis(marks: Iterable[tuple[float, str]]) -> Markup:
    """The figures below the rows: `(percent of the length, words)`."""
    drawing = Drawing(AXIS_HEIGHT)
    for place, words in marks:
        drawing.line(place, 0, place, 5, "grid")
        drawing.text(place, 18, words, "mark")
    return drawing.markup()


# No two marks of a ratio axis stand closer, in percent of its length, so that their figures have room on a phone.
_MIN_MARK_DISTANCE = 14.0
_MAX_MARKS = 8


@dataclass(frozen=True)
class LinearAxis:
    """From 0 to `end`, which is above 0."""

    end: float

    def position(self, value: float) -> float:
        """Where `value` stands, in percent; figures beyond the ends stand at them."""
        return min(max(value / self.end, 0.0), 1.0) * 100

    def marks(self, size: float = 1.0) -> list[float]:
        """At most five round figures from 0 on; round in a unit of `size`."""
        step = _round_up(self.end / size / 4) * size
        return [step * count for count in range(floor(self.end / step * (1 + 1e-9)) + 1)]


@dataclass(frozen=True)
class RatioAxis:
    """A logarithmic axis: half stands as far from 1 as double."""

    low: float
    high: float

    @classmethod
    def around(cls, ratios: Iterable[float]) -> RatioAxis:
        """The axis that shows all of `ratios`, which are above 0, and 1; with a little room at both ends."""
        shown = [1.0, *ratios]
        room = max((max(shown) / min(shown)) ** 0.05, 1.02)
        return cls(min(shown) / room, max(shown) * room)

    def position(self, ratio: float) -> float:
        """Where `ratio` stands, in percent."""
        return log(ratio / self.low) / log(self.high / self.low) * 100

    def marks(self) -> list[float]:
        """1 and as many other round ratios as have room."""
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


# Names have a fixed size and move apart as the page widens: what has room on a phone has room everywhere. So many
# pixels the narrowest chart has beside the figures of its axis; a point's radius; a name's distance and half height.
_WIDTH, _RADIUS, _DISTANCE, _HALF = 225.0, 8.0, 14.0, 9.0
_STEPS = (0, -20, 20, -40, 40, -60, 60, -80, 80, -100, 100)
_MAX_LETTERS = 24

_Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Name:
    """A name around the height `y`: right of its point by `shift` pixels, left of it where that is negative, and at 0
    above or below it.
    """

    words: str
    shift: float
    y: float


def place_names(points: list[tuple[float, float]], texts: list[str], top: float, bottom: float) -> list[Name]:
    """A place for each of `texts`, as near as possible to its point, (percent, pixels), between `top` and `bottom`.

    Long texts are shortened. Where a chart is too full for all of them, the last ones stand at their points and may
    cover others.
    """
    texts = [text if len(text) <= _MAX_LETTERS else f"{text[: _MAX_LETTERS - 1]}…" for text in texts]
    centres = [(x / 100 * _WIDTH, y) for x, y in points]
    dots = [(x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for x, y in centres]
    placed: dict[int, Name] = {}
    taken: list[_Box] = []
    # From right to left: a name stands right of its point, and the points there have had their choice.
    for index in sorted(range(len(points)), key=lambda each: -centres[each][0]):
        (x, y), others = centres[index], dots[:index] + dots[index + 1 :]
        width = text_width(texts[index]) * 13 / 12
        placed[index] = Name(texts[index], _DISTANCE if x < _WIDTH / 2 else -_DISTANCE, y)
        for step, side in product(_STEPS, (1, -1, 0)):
            left = {1: x + _DISTANCE, -1: x - _DISTANCE - width, 0: x - width / 2}[side]
            box = (left, y + step - _HALF, left + width, y + step + _HALF)
            inside = left >= -4 and box[2] <= _WIDTH + 4 and box[1] >= top - 12 and box[3] <= bottom - 1
            on_itself = side == 0 and step == 0
            if inside and not on_itself and not any(_meet(box, each) for each in taken + others):
                placed[index] = Name(texts[index], side * _DISTANCE, y + step)
                taken.append(box)
                break
    return [placed[index] for index in range(len(points))]


def _meet(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
