"""SVG pictures whose text keeps its size, on a phone as on a wide screen."""

from __future__ import annotations

from typing import Literal
from xml.etree import ElementTree

from markupsafe import Markup

# The layouts of page.css, and how many pixels a drawing is at least wide in each: two beside the names, one below them.
LAYOUTS = {"wide": 700, "medium": 480, "narrow": 290}
_LETTER = 7.2

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
    return len(words) * _LETTER
