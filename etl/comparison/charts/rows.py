"""Charts of rows: a name, what is said beside it, and a drawing, one below the other over a common axis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from etl.comparison.charts.drawing import Drawing

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
