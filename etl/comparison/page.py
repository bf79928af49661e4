"""A report as one HTML page: without network, scripts or fonts of its own, on any width, light and dark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jinja2

from etl.comparison.charts.epoch_bars import epoch_bars
from etl.comparison.charts.overlap_lanes import BATCHES, overlap_lanes
from etl.comparison.charts.ratio_intervals import describe_interval, ratio_intervals
from etl.comparison.charts.stage_bar import stage_bar, stage_parts
from etl.comparison.charts.stage_points import stage_name, stage_points
from etl.comparison.figures_table import figures_table, pays_off
from etl.comparison.report import Check, Report
from etl.comparison.units import digits, nbytes, percent, ratio, seconds

# For each state of a rule: its class, its mark and its word, which says it without the colour.
STATES = {True: ("held", "✓", "held"), False: ("broken", "✗", "not held"), None: ("unknown", "?", "not checked")}


def page(report: Report) -> str:
    """The whole page; `report` has at least one strategy. Whatever the report's texts hold is shown as text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("etl.comparison", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        digits=digits, nbytes=nbytes, percent=percent, ratio=ratio, seconds=seconds, plain=_plain
    )
    html = environment.get_template("page.html").render(
        report=report,
        bars=epoch_bars(report),
        ratios=ratio_intervals(report),
        groups=figures_table(report),
        points=stage_points(report) if report.stages else None,
        lanes=overlap_lanes(report),
        batches_shown=BATCHES,
        profile_bar=stage_bar(report.profile) if report.profile.stages else None,
        profile_parts=stage_parts(report.profile),
        checks=[(check, *STATES[check.held]) for check in report.checks],
        verdict_on_rules=_verdict_on_rules(report.checks),
        clock=_clock(report.noise.frequency_mhz),
        facts=[
            (title, _facts(values))
            for title, values in (
                ("Settings", report.settings),
                ("Machine", report.machine),
                ("Versions", report.versions),
            )
        ],
        stage_name=stage_name,
        describe_interval=describe_interval,
        pays_off=pays_off,
    )
    # File names that are no UTF-8 come with lone surrogates, which no file in UTF-8 can hold.
    return html.encode("utf-8", "backslashreplace").decode("utf-8")


def _verdict_on_rules(checks: list[Check]) -> str:
    counts = {held: sum(check.held is held for check in checks) for held in STATES}
    parts = [f"{counts[True]} of {len(checks)} rules held"]
    parts += [f"{counts[held]} {STATES[held][2]}" for held in (False, None) if counts[held]]
    return ", ".join(parts)


def _clock(megahertz: list[float]) -> str:
    if not megahertz:
        return "not known"
    lowest, highest = f"{min(megahertz):,.0f}", f"{max(megahertz):,.0f}"
    return f"{highest} MHz" if lowest == highest else f"{lowest} to {highest} MHz"


def _facts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), _plain(value)) for name, value in values.items()]


def _plain(value: Any) -> str:
    """Any JSON value in words."""
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)) and not any(isinstance(each, (list, tuple, dict)) for each in value):
        return ", ".join(map(_plain, value)) or "none"
    return json.dumps(value, ensure_ascii=False)
