"""What each stage of the raw pipeline takes of a record's time, as one bar."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from etl.comparison.charts.drawing import Drawing
from etl.comparison.report import ProfileResult
from etl.comparison.units import percent, time_scale

# So many colours can be told apart; stages beyond them begin with the first again.
COLOURS = 7
HEIGHT = 40


@dataclass(frozen=True)
class StagePart:
    """A row of the table below the bar, with the class of its colour."""

    name: str
    kind: str
    seconds: str
    share: str


def stage_bar(profile: ProfileResult) -> Markup:
    """The bar, of all stages from left to right."""
    parts, total = stage_parts(profile), _total(profile)
    drawing = Drawing(
        HEIGHT,
        f"Seconds of one record in one thread, {time_scale([total]).text(total)} in all",
        "; ".join(f"{each.name}: {each.seconds}, {each.share}" for each in parts),
    )
    left = 0.0
    for part, stage in zip(parts, profile.stages, strict=True):
        right = left + stage.seconds_per_record / total * 100
        drawing.bar(left, right, 2, HEIGHT - 2, f"part {part.kind}", f"{part.name}: {part.seconds}, {part.share}")
        drawing.label(left, right, 24.5, (f"{part.name} {part.seconds}", part.name), f"on-{part.kind}")
        left = right
    return drawing.markup()


def stage_parts(profile: ProfileResult) -> list[StagePart]:
    """What the bar shows, stage by stage."""
    scale, total = time_scale([_total(profile)]), _total(profile)
    return [
        StagePart(
            stage.name,
            f"stage-{index % COLOURS}",
            scale.text(stage.seconds_per_record),
            percent(stage.seconds_per_record / total),
        )
        for index, stage in enumerate(profile.stages)
    ]


def _total(profile: ProfileResult) -> float:
    return sum(each.seconds_per_record for each in profile.stages)
