"""A report as one HTML page, which needs no network, scripts or fonts, fits any width, and has light and dark modes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jinja2
import markupsafe

from etl.comparison.show.charts import describe_interval, epoch_bars, ratio_intervals, stage_bar, stage_name
from etl.units import (
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

if TYPE_CHECKING:
    from etl.comparison.judge.report import Check, ReportData, Scenario, ScenarioResult, StrategyResult

    Get = Callable[[StrategyResult], float | None]

# For each state of a rule: CSS class, mark, and a word that says the same without colour.
STATES = {True: ("held", "✓", "held"), False: ("broken", "✗", "not held"), None: ("unknown", "?", "not checked")}


def framed(page: str, title: str) -> str:
    """Return a page in a frame that a notebook can show, apart from the notebook's own styles."""
    content = markupsafe.escape(page)
    return f'<iframe srcdoc="{content}" style="width: 100%; height: 900px; border: 0" title="{title}"></iframe>'


def render_page(report: ReportData) -> str:
    """Return the page as HTML. Markup in the texts of the report is escaped."""
    return render_template(
        "page.html",
        report=report,
        bars=epoch_bars(report),
        ratios=ratio_intervals(report),
        groups=metrics_table(report),
        profile_bar=stage_bar(report.profile) if report.profile.stages else None,
        checks=[(check, *STATES[check.held]) for check in report.checks],
        verdict_on_rules=_verdict_on_rules(report.checks),
        clock=_clock(report.noise.frequency_mhz),
        facts=list_facts(Settings=report.settings, Machine=report.machine, Versions=report.versions),
        stage_name=stage_name,
        describe_interval=describe_interval,
        pays_off=pays_off,
        cpus_wanted=cpus_wanted,
        prediction_kind=prediction_kind,
        scenario_notes=scenario_notes,
    )


def render_template(name: str, **values: Any) -> str:
    """Return the template `name` of this package with `values`, whose markup is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("etl.comparison.show", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        digits=digits, nbytes=nbytes, percent=percent, ratio=ratio, seconds=seconds, plain=_plain
    )
    html = environment.get_template(name).render(**values)
    # File names that are not valid UTF-8 contain lone surrogates, which a UTF-8 file cannot hold.
    return html.encode("utf-8", "backslashreplace").decode("utf-8")


def list_facts(**sections: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Return the names and JSON values of each section as text for people."""
    return {
        title: [(name.replace("_", " "), _plain(value)) for name, value in values.items()]
        for title, values in sections.items()
    }


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


def _plain(value: Any) -> str:
    """Return any JSON value as text for people."""
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


@dataclass(frozen=True)
class MetricRow:
    """One metric of all strategies, with a cell for each.

    The unit is empty if there is none or the cells include it, and the meaning if the name says enough.
    """

    name: str
    unit: str
    meaning: str
    cells: list[str]


def metrics_table(report: ReportData) -> dict[str, list[MetricRow]]:
    """Return the metrics by the title of their group, from the wall time to the cost of a store."""
    results = report.strategies
    epoch = time_scale(each.parts.wall_seconds for each in results)

    def times(name: str, meaning: str, get: Get, scale: Scale | None = None) -> MetricRow:
        scale = scale or time_scale(map(get, results))
        return MetricRow(name, scale.unit, meaning, [scale.number(get(each)) for each in results])

    def sizes(name: str, meaning: str, get: Get) -> MetricRow:
        return times(name, meaning, get, byte_scale(map(get, results)))

    def words(name: str, meaning: str, get: Callable[[StrategyResult], str]) -> MetricRow:
        return MetricRow(name, "", meaning, [get(each) for each in results])

    def lost(name: str, meaning: str, get: Get) -> MetricRow:
        shares = ((get(each), each.parts.wall_seconds) for each in results)
        cells = [percent(None if value is None else value / wall) for value, wall in shares]
        return MetricRow(name, "", meaning, cells)

    stalls = time_scale(each.stall_tails.largest for each in results)
    meaning = "the training loop waits for batches; stall is the time in which the device waits"
    host_waits = [times("host wait", meaning, lambda r: r.host_wait_seconds, epoch)] if report.shows_host_wait() else []
    device_memory = []
    if any(each.peak_device_memory_nbytes is not None for each in report.strategies):
        meaning = "most that torch's allocator had given out on the device"
        device_memory = [sizes("peak device memory", meaning, lambda r: r.peak_device_memory_nbytes or 0)]
    return {
        "Time of one epoch": [
            times("wall time", "the sum of the five rows below", lambda r: r.parts.wall_seconds, epoch),
            times(
                "compute alone",
                "steps on a batch in memory, with nothing else running",
                lambda r: r.parts.compute_alone_seconds,
                epoch,
            ),
            times(
                "interference",
                "additional time that compute takes during loading; below 0 is noise",
                lambda r: r.parts.interference_seconds,
                epoch,
            ),
            times("stall", "compute waits for a batch", lambda r: r.parts.stall_seconds, epoch),
            times("harness", "the measuring loop itself", lambda r: r.parts.harness_seconds, epoch),
            times("unexplained", "wall time minus the four rows above", lambda r: r.parts.unexplained_seconds, epoch),
            words(
                "unexplained, of wall",
                "must stay below 1%",
                lambda r: percent(r.parts.unexplained_seconds / r.parts.wall_seconds),
            ),
            times("first batch", "from the start of the epoch until it is ready", lambda r: r.first_batch_seconds),
            *host_waits,
        ],
        "Loading during compute": [
            times("ETL alone", "loading an epoch, with nothing else running", lambda r: r.etl_alone_seconds, epoch),
            words(
                "accelerator utilisation",
                "compute alone over wall, as MLPerf Storage defines it",
                lambda r: percent(r.accelerator_utilisation),
            ),
            times("stall before a batch, median", "", lambda r: r.stall_tails.median, stalls),
            times("stall before a batch, 99%", "99 of 100 batches come sooner", lambda r: r.stall_tails.p99, stalls),
            times(
                "stall before a batch, largest",
                "of all rounds, without first batches",
                lambda r: r.stall_tails.largest,
                stalls,
            ),
            words("samples/s", "records per second of wall time", lambda r: digits(r.samples_per_second)),
            words(
                "overlap",
                "the longer of ETL alone and compute alone, over wall: at 1.00 the shorter is completely hidden",
                lambda r: ratio(r.overlap),
            ),
        ],
        "Lost, as a share of wall time": [
            lost(
                "all that is lost",
                "the device does not compute; the sum of the six rows below",
                lambda r: r.losses.lost_seconds,
            ),
            lost("start-up", "the stall before the first batches", lambda r: r.losses.start_up_seconds),
            lost(
                "storage",
                "later stalls in which no thread that loads used a CPU or was ready to: data were waited for",
                lambda r: r.losses.storage_seconds,
            ),
            lost("CPU", "all other stalls: decoding and the like took too long", lambda r: r.losses.cpu_seconds),
            lost("transfer", "copies to the device", lambda r: r.losses.transfer_seconds),
            lost("interference", "as above", lambda r: r.parts.interference_seconds),
            lost(
                "harness and unexplained",
                "as above",
                lambda r: r.parts.harness_seconds + r.parts.unexplained_seconds,
            ),
            words(
                "storage is measured by",
                "cpu-time: of the threads that load. psi: where several load, also the kernel's pressure stall "
                "information",
                lambda r: r.losses.storage_method or NOT_MEASURED,
            ),
        ],
        "Resources": [
            words("CPU s per 1,000", "CPU seconds per 1,000 records", lambda r: digits(r.cpu_seconds_per_1000)),
            sizes("peak memory", "of the process and its children, without libraries", lambda r: r.peak_memory_nbytes),
            *device_memory,
            sizes("bytes read", "from files, in one epoch", lambda r: r.read_nbytes),
            words("compute threads", "on the same CPUs as loading", lambda r: str(r.compute_threads)),
            words(
                "loading threads",
                "or worker processes; a loader of your own chooses them itself",
                lambda r: NOT_MEASURED if r.is_foreign else str(r.loading_threads),
            ),
        ],
        f"Compared with {report.reference}": [
            words(
                "ratio of wall times",
                "divided by the reference's wall time in the same round",
                lambda r: ratio(r.ratio.estimate if r.ratio else None),
            ),
            words(
                "95% interval",
                "holds for all ratios together; six rounds or more",
                lambda r: bounds(r.ratio) or NOT_MEASURED,
            ),
            words(
                "samples",
                "how much its records have in common with the reference's",
                lambda r: NOT_MEASURED if r.sameness is None else r.sameness.describe(),
            ),
            words(
                "order",
                "mean distance in records from their place in the source; if it is unknown, that of the next epoch",
                lambda r: NOT_MEASURED if r.sameness is None else r.sameness.order or NOT_MEASURED,
            ),
            words("records measured", "of one epoch", lambda r: f"{r.measured_records:,}"),
            words("rounds", "measurements, each in a fresh process", lambda r: str(len(r.rounds))),
            words("verdict", "", lambda r: r.verdict),
        ],
        "What is prepared": [
            words("format", "of the store", lambda r: r.format or NOT_MEASURED),
            words("presaved after", "the last stage before records are stored", lambda r: r.stage or NOT_MEASURED),
            times(
                "written in",
                "once, before the first epoch",
                lambda r: r.presaving.write_seconds if r.presaving else None,
            ),
            sizes("disk", "", lambda r: r.presaving.nbytes if r.presaving else None),
            words(
                "pays off after",
                "epochs until it has saved the time to prepare it",
                lambda r: pays_off(r.presaving.break_even_epochs, report) if r.presaving else NOT_MEASURED,
            ),
        ],
    }


def pays_off(epochs: float | None, report: ReportData) -> str:
    """Return "1.3 epochs", or "never" for None; a dash if every strategy needs a store."""
    if all(each.presaving is not None for each in report.strategies):
        return NOT_MEASURED
    return "never" if epochs is None else f"{digits(epochs, 2)} epochs"


def prediction_kind(result: ScenarioResult) -> str:
    """Return how far the prediction for a scenario can be trusted: "none", "extrapolated" or "interpolated"."""
    if result.wall_seconds is None:
        return "none"
    return "extrapolated" if result.extrapolated else "interpolated"


def cpus_wanted(result: ScenarioResult) -> str:
    """Return the CPUs for a utilisation of 90%; "no number" if none are enough."""
    if result.wall_seconds is None:
        return NOT_MEASURED
    if result.cpus_for_utilisation is None:
        return "no number"
    return f"{result.cpus_for_utilisation}{' (extrapolated)' if result.cpus_extrapolated else ''}"


def scenario_notes(scenario: Scenario) -> list[str]:
    """Return sentences that say why strategies are not predicted, never used for 90%, or extrapolated."""
    notes: dict[str, list[str]] = {}
    for each in scenario.strategies:
        if each.wall_seconds is None:
            notes.setdefault(f"Not predicted, because {each.reason}", []).append(each.strategy)
        elif each.reason:
            notes.setdefault(f"No number of CPUs gives 90%, because {each.reason}", []).append(each.strategy)
        for reason in each.extrapolated:
            notes.setdefault(f"Extrapolated, because the scenario has {reason}", []).append(each.strategy)
    return [f"{note}: {', '.join(names)}." for note, names in notes.items()]
