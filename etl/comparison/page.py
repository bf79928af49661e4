"""A report as one HTML page: without network, scripts or fonts of its own, on any width, light and dark.

The table of all figures: one row for each figure, one column for each strategy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2

from etl.comparison.charts import (
    MAX_BATCHES_SHOWN,
    describe_interval,
    epoch_bars,
    overlap_lanes,
    ratio_intervals,
    stage_bar,
    stage_name,
    stage_parts,
    stage_points,
)
from etl.comparison.report import Check, Report, StrategyResult
from etl.comparison.units import (
    NOT_MEASURED,
    Scale,
    bounds,
    byte_scale,
    digits,
    nbytes,
    percent,
    ratio,
    seconds,
    time_scale,
)

# For each state of a rule: its class, its mark and its word, which says it without the colour.
STATES = {True: ("held", "✓", "held"), False: ("broken", "✗", "not held"), None: ("unknown", "?", "not checked")}


def render_page(report: Report) -> str:
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
        groups=metrics_table(report),
        points=stage_points(report) if report.stages else None,
        lanes=overlap_lanes(report),
        batches_shown=MAX_BATCHES_SHOWN,
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


Get = Callable[[StrategyResult], float | None]


@dataclass(frozen=True)
class MetricRow:
    """One figure of all strategies, in their order; `unit` is empty where the cells say it, or there is none."""

    name: str
    unit: str
    meaning: str
    cells: list[str]


@dataclass(frozen=True)
class MetricGroup:
    """Rows that belong together."""

    title: str
    rows: list[MetricRow]


def metrics_table(report: Report) -> list[MetricGroup]:
    """All groups, from the wall time down to what a store costs."""
    results = report.strategies
    epoch = time_scale(each.parts.wall_seconds for each in results)

    def times(name: str, meaning: str, get: Get, scale: Scale | None = None) -> MetricRow:
        scale = scale or time_scale(map(get, results))
        return MetricRow(name, scale.unit, meaning, [scale.number(get(each)) for each in results])

    def sizes(name: str, meaning: str, get: Get) -> MetricRow:
        scale = byte_scale(map(get, results))
        return MetricRow(name, scale.unit, meaning, [scale.number(get(each)) for each in results])

    def words(name: str, meaning: str, get: Callable[[StrategyResult], str]) -> MetricRow:
        return MetricRow(name, "", meaning, [get(each) for each in results])

    meaning = "in which the training loop waits for batches; the stall is the time in which the device does"
    host_waits = [times("host wait", meaning, lambda r: r.host_wait_seconds, epoch)] if report.shows_host_wait() else []
    return [
        MetricGroup(
            "Time of one epoch",
            [
                times("wall time", "all of it: the sum of the five rows below", lambda r: r.parts.wall_seconds, epoch),
                times(
                    "compute alone",
                    "training steps on a batch in memory, nothing else at work",
                    lambda r: r.parts.compute_alone_seconds,
                    epoch,
                ),
                times(
                    "interference",
                    "what compute takes longer beside loading; below 0, compute was faster than alone, which is noise",
                    lambda r: r.parts.interference_seconds,
                    epoch,
                ),
                times("stall", "nothing is computed, for want of a batch", lambda r: r.parts.stall_seconds, epoch),
                times("harness", "the measuring loop itself", lambda r: r.parts.harness_seconds, epoch),
                times("unexplained", "what is left", lambda r: r.parts.unexplained_seconds, epoch),
                words(
                    "unexplained, of wall",
                    "has to stay under 1%",
                    lambda r: percent(r.parts.unexplained_seconds / r.parts.wall_seconds),
                ),
                times("first batch", "from the start of the epoch until it is there", lambda r: r.first_batch_seconds),
                *host_waits,
            ],
        ),
        MetricGroup(
            "Loading beside compute",
            [
                times("ETL alone", "loading an epoch, nothing else at work", lambda r: r.etl_alone_seconds, epoch),
                words(
                    "samples/s", "records trained on in a second of wall time", lambda r: digits(r.samples_per_second)
                ),
                words(
                    "overlap",
                    "the longer of ETL alone and compute alone, over wall: at 1.00 the shorter is hidden completely",
                    lambda r: ratio(r.overlap),
                ),
            ],
        ),
        MetricGroup(
            "What it uses",
            [
                words("CPU s per 1,000", "CPU seconds for 1,000 records", lambda r: digits(r.cpu_seconds_per_1000)),
                sizes("peak memory", "of the process and its children", lambda r: r.peak_memory_nbytes),
                sizes("bytes read", "from files, in one epoch", lambda r: r.read_nbytes),
                words("compute threads", "on the same CPUs as loading", lambda r: str(r.compute_threads)),
                words("loading threads", "or worker processes", lambda r: str(r.loading_threads)),
            ],
        ),
        MetricGroup(
            f"Against {report.reference}",
            [
                words(
                    "ratio of wall times",
                    "each paired with the reference of its round",
                    lambda r: ratio(r.ratio.estimate if r.ratio else None),
                ),
                words("95% interval", "signed-rank, from six rounds on", lambda r: bounds(r.ratio) or NOT_MEASURED),
                words("rounds", "measurements, each in a fresh process", lambda r: str(len(r.rounds))),
                words("verdict", "", lambda r: r.verdict),
            ],
        ),
        MetricGroup(
            "Prediction",
            [
                times(
                    "predicted wall",
                    "from the profile of the raw pipeline alone, before any strategy ran",
                    lambda r: r.prediction.wall_seconds if r.prediction else None,
                    epoch,
                ),
                words(
                    "error",
                    "above 0: the prediction was too long",
                    lambda r: percent(r.prediction.error if r.prediction else None, signed=True),
                ),
                times(
                    "at the speed of the rounds",
                    "the same, with compute alone as it was beside the strategies: machines change their speed",
                    lambda r: r.prediction.at_speed_seconds if r.prediction else None,
                    epoch,
                ),
                words(
                    "error at that speed",
                    "above 0: too long",
                    lambda r: percent(r.prediction.at_speed_error if r.prediction else None, signed=True),
                ),
            ],
        ),
        MetricGroup(
            "The store",
            [
                words("format", "", lambda r: r.format or NOT_MEASURED),
                words("cut after", "the stage whose result is kept", lambda r: r.stage or NOT_MEASURED),
                times(
                    "written in",
                    "once, before the first epoch",
                    lambda r: r.presaving.write_seconds if r.presaving else None,
                ),
                sizes("disk", "", lambda r: r.presaving.nbytes if r.presaving else None),
                words(
                    "pays off after",
                    "epochs until the time of writing is won back",
                    lambda r: pays_off(r.presaving.break_even_epochs, report) if r.presaving else NOT_MEASURED,
                ),
            ],
        ),
    ]


def pays_off(epochs: float | None, report: Report) -> str:
    """`1.3 epochs`, or "never" for None; no figure if there is no strategy without a store to compare with."""
    if all(each.stage is not None for each in report.strategies):
        return NOT_MEASURED
    return "never" if epochs is None else f"{digits(epochs, 2)} epochs"
