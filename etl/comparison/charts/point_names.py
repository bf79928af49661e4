"""Names beside points, so that none covers another name or point at any width of the page."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from etl.comparison.charts.drawing import text_width

# Names have a fixed size and move apart as the page widens: what has room on a phone has room everywhere. So many
# pixels the narrowest chart has beside the figures of its axis; a point's radius; a name's distance and half height.
_WIDTH, _RADIUS, _DISTANCE, _HALF = 225.0, 8.0, 14.0, 9.0
_STEPS = (0, -20, 20, -40, 40, -60, 60, -80, 80, -100, 100)
_LONGEST = 24

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
    texts = [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…" for text in texts]
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
