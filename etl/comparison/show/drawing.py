"""Drawing in SVG: shapes, charts of rows, axes, and labels that do not overlap.

Text keeps its size, on a phone as on a wide screen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log, log10
from typing import Literal
from xml.etree import ElementTree

from markupsafe import Markup

# Layouts of page.css, with the minimum width of a drawing in pixels. Only in "narrow" drawings are below the names.
LAYOUTS = {"wide": 700, "medium": 480, "narrow": 290}
_LETTER_WIDTH = 7.2

Anchor = Literal["start", "middle", "end"]


class Drawing:
    """An SVG picture as wide as its place on the page: x is in percent of the width, y in pixels.

    It has no `viewBox`: that would scale the text with the picture, until it is unreadable on a phone. The `kind` of
    each shape is its CSS class, which page.css styles.

    Parameters
    ----------
    height : float
        Height in pixels.
    title, description : str
        Text for screen readers, which skip the picture if it has no title.
    """

    def __init__(self, height: float, title: str = "", description: str = "") -> None:
        hidden = {"role": "img"} if title else {"aria-hidden": "true"}
        self._root = ElementTree.Element("svg", {"width": "100%", "height": f"{height:g}", **hidden})
        for tag, words in (("title", title), ("desc", description)):
            if words:
                ElementTree.SubElement(self._root, tag).text = words

    def bar(self, left: float, right: float, top: float, bottom: float, kind: str, tooltip: str = "") -> None:
        """Draw a filled rectangle, if it is wider than 0. A very narrow one also gets the class "thin".

        Parameters
        ----------
        top, bottom : float
            Ends in pixels.
        """
        if right > left:
            if right - left < 0.5:
                # CSS draws an outline around it.
                kind, top, bottom = f"{kind} thin", top + 1, bottom - 1
            place = {
                "x": f"{left:.3f}%",
                "width": f"{right - left:.3f}%",
                "y": f"{top:g}",
                "height": f"{bottom - top:g}",
            }
            self._add("rect", kind, place, tooltip)

    def line(self, from_x: float, from_y: float, to_x: float, to_y: float, kind: str) -> None:
        """Draw a straight line.

        Parameters
        ----------
        from_y, to_y : float
            Ends in pixels.
        """
        ends = {"x1": f"{from_x:.3f}%", "y1": f"{from_y:g}", "x2": f"{to_x:.3f}%", "y2": f"{to_y:g}"}
        self._add("line", kind, ends)

    def dot(self, x: float, y: float, radius: float, kind: str, tooltip: str = "") -> None:
        """Draw a filled circle.

        Parameters
        ----------
        x, y : float
            Centre, in percent of the width and in pixels.
        radius : float
            Radius in pixels.
        """
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
        """Draw text.

        Parameters
        ----------
        x, y : float
            Position of the baseline, in percent of the width and in pixels.
        anchor : {"start", "middle", "end"}
            Part of the text that is at `x`.
        shift : float
            Distance from `x` in pixels, to the right.
        """
        place = {"x": f"{x:.3f}%", "y": f"{y:g}", "text-anchor": anchor, "dx": f"{shift:g}"}
        self._add("text", kind, place).text = words

    def label(self, left: float, right: float, y: float, texts: tuple[str, ...], kind: str) -> None:
        """Draw the first of `texts` that fits, in each layout.

        Parameters
        ----------
        y : float
            Baseline in pixels.
        """
        shown: dict[str, list[str]] = {}
        for layout, pixels in LAYOUTS.items():
            room = (right - left) / 100 * pixels - 6
            words = next((each for each in texts if text_width(each) <= room), None)
            if words is not None:
                shown.setdefault(words, []).append(layout)
        for words, layouts in shown.items():
            only = "" if len(layouts) == len(LAYOUTS) else f" only {' '.join(layouts)}"
            self.text((left + right) / 2, y, words, f"{kind}{only}")

    def markup(self) -> Markup:
        """Return the picture as markup for an HTML page."""
        return Markup(ElementTree.tostring(self._root, encoding="unicode"))  # noqa: S704  the serialiser escapes

    def _add(self, tag: str, kind: str, attributes: dict[str, str], tooltip: str = "") -> ElementTree.Element:
        shape = ElementTree.SubElement(self._root, tag, {"class": kind, **attributes})
        if tooltip:
            ElementTree.SubElement(shape, "title").text = tooltip
        return shape


def text_width(words: str) -> float:
    """Return the maximum width of `words` in pixels, for common sans-serif fonts of 12 pixels."""
    return len(words) * _LETTER_WIDTH


AXIS_HEIGHT = 22


@dataclass(frozen=True)
class Row:
    """One row of a chart.

    Attributes
    ----------
    name : str
        Name of the row.
    summary : str
        The drawing in short, as text.
    drawing : Markup
        The drawing.
    warning : str
        Reason why the row does not count; otherwise empty.
    """

    name: str
    summary: str
    drawing: Markup
    warning: str = ""


@dataclass(frozen=True)
class RowChart:
    """Rows from top to bottom, and their common axis below."""

    rows: list[Row]
    axis: Markup


def draw_grid(drawing: Drawing, places: Iterable[float], kind: str = "grid") -> None:
    """Draw thin vertical lines that reach down to the next row, however high the text beside the drawing is.

    They are longer than any row, and page.css clips them.
    """
    for place in places:
        drawing.line(place, 0, place, 1000, kind)


def draw_axis(marks: Iterable[tuple[float, str]]) -> Markup:
    """Draw an axis below the rows. Each mark is (position in percent of the width, text)."""
    drawing = Drawing(AXIS_HEIGHT)
    for place, words in marks:
        drawing.line(place, 0, place, 5, "grid")
        drawing.text(place, 18, words, "mark")
    return drawing.markup()


# Minimum distance between marks of a ratio axis, in percent of its length, so that their labels fit on a phone.
_MIN_MARK_DISTANCE = 14.0
_MAX_MARKS = 8


@dataclass(frozen=True)
class LinearAxis:
    """A linear axis from 0 to `end`, which is above 0."""

    end: float

    def position(self, value: float) -> float:
        """Return the position of `value` in percent, clipped to the axis."""
        return min(max(value / self.end, 0.0), 1.0) * 100

    def marks(self, size: float = 1.0) -> list[float]:
        """Return at most five marks from 0 upwards: values that are round numbers in a unit of `size`."""
        step = _round_up(self.end / size / 4) * size
        return [step * count for count in range(floor(self.end / step * (1 + 1e-9)) + 1)]


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
