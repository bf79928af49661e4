"""A report as tables in the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from etl.comparison.show.charts import bar_segments
from etl.comparison.show.page import cpus_wanted, pays_off, prediction_kind, scenario_notes
from etl.printable_console import PrintableConsole
from etl.tables import Bar, print_table
from etl.units import Scale, bounds, counted, percent, time_scale

if TYPE_CHECKING:
    from etl.comparison.judge.report import ReportData, Scenario, StrategyResult

# Characters and styles of the bars.
COMPUTE, INTERFERENCE, STALL = ("█", "green"), ("▒", "yellow"), ("░", "red")
BAR_LEGEND = f"parts of wall: {COMPUTE[0]} compute alone, {INTERFERENCE[0]} interference, {STALL[0]} stall"
# Columns of a report as text, which a notebook shows without wrapping.
TEXT_WIDTH = 120
# Smaller losses are not listed.
MIN_LOSS = 0.01
STAGE_LEGEND = f"{COMPUTE[0]} samples/s, {INTERFERENCE[0]} disk"
RANKS_LEGEND = "waits: in steps, for ranks whose batch came later. MB: peak memory, with what ranks share"
WHAT_IF_LEGEND = "utilisation: compute alone over wall"
LEGEND = (
    "Times are per epoch, in {unit}. wall = compute alone + interference + stall + harness + unexplained (at most "
    "{worst:.2%}). compute = compute alone + interference. ratio: wall divided by the wall of {reference}, paired "
    "within rounds."
)

SAMENESS_LEGEND = (
    "samples: compared with those of {reference}: identical (same bytes and order), same records (same bytes, another "
    "order), close (every record has a partner within this distance, as a share of the spread), same amount (count, "
    "shapes and dtypes)."
)


def show_report(report: ReportData, console: Console, *, is_whole: bool = True) -> None:
    """Print a report: recommendation, strategies, stages, and rules of fairness.

    Unless `is_whole`, it is what decides, on one screen, and a line that says what else there is.
    """
    if report.unchecked:
        console.print(f"RULES NOT CHECKED: {', '.join(report.unchecked)}", style="bold red")
    if report.stopped_early:
        rounds = counted(report.rounds, "round", "rounds")
        console.print(f"STOPPED EARLY, after {rounds}", style="bold yellow")
    for sentence in report.recommendation:
        console.print(sentence, style="bold")
    epoch = time_scale(each.parts.wall_seconds for each in report.strategies)
    wall = f"wall, {epoch.unit}"
    first = (wall, "ratio", "samples", "95% interval", "parts", "verdict")
    print_table(_strategies(report, wall, epoch, is_whole), console, first=first)
    if is_whole:
        _show_legends(report, epoch, console)
    for result in report.strategies:
        for reason in result.disqualified:
            console.print(f"{result.name} is disqualified: {reason}", style="red")
    if is_whole:
        _show_losses(report, console)
    if any(each.ranks for each in report.strategies):
        if is_whole:
            print_table(_ranks(report, epoch), console, keys=2)
        for each in report.strategies:
            console.print(f"{each.name}: {each.straggler}")
    if report.stages:
        print_table(_stages(report), console)
    for scenario in report.scenarios:
        _show_scenario(scenario, console)
    _show_checks(report, console, is_whole)
    for line in (*report.noise.warnings, *(report.notes if is_whole else ())):
        console.print(line)
    notes = f", memory and {counted(len(report.notes), 'note', 'notes')}" if report.notes else " and memory"
    more = "" if is_whole else f"; -v shows losses{notes}"
    console.print(
        f"rounds of {report.measured_records:,} records: {report.rounds}, in {report.seconds:.0f} s{more}",
        style="dim",
    )


def _show_legends(report: ReportData, epoch: Scale, console: Console) -> None:
    worst = max(abs(each.parts.unexplained_seconds) / each.parts.wall_seconds for each in report.strategies)
    legend = LEGEND.format(unit=epoch.unit, worst=worst, reference=report.reference)
    console.print(legend, style="dim")
    if report.shows_sameness():
        console.print(SAMENESS_LEGEND.format(reference=report.reference), style="dim")


def _show_losses(report: ReportData, console: Console) -> None:
    """Print what the reference and the fastest strategy lose."""
    reference, valid = report.strategies[0], [each for each in report.strategies if not each.disqualified]
    fastest = min(valid, key=lambda each: each.parts.wall_seconds, default=reference)
    for result in (reference,) if fastest is reference else (reference, fastest):
        console.print(_losses(result), style="dim")


def as_text(show: Callable[[Console], None]) -> str:
    """Return what `show` prints on a console, without colours."""
    text = io.StringIO()
    # In a notebook, rich would show the tables itself. Names and reasons come from outside: they have no markup.
    console = PrintableConsole(
        file=text, width=TEXT_WIDTH, color_system=None, force_jupyter=False, markup=False, emoji=False, highlight=False
    )
    show(console)
    return text.getvalue()


def _strategies(report: ReportData, wall: str, epoch: Scale, is_whole: bool) -> Table:
    """Return the table of strategies, with `wall` as the heading of their wall times."""
    table = Table(title=report.title, caption=BAR_LEGEND)
    has_device_memory = any(each.peak_device_memory_nbytes is not None for each in report.strategies)
    longest = max(each.parts.wall_seconds for each in report.strategies)
    # Other verdicts can be seen from the interval and the lines below the table.
    says_more = any(each.verdict in ("CPU quota", "too few rounds") for each in report.strategies)
    # Each with its cell, and if it is shown.
    columns: list[tuple[str, Callable[[StrategyResult], Any], bool]] = [
        ("strategy", lambda each: each.name, True),
        (wall, lambda each: epoch.number(each.parts.wall_seconds), True),
        ("ETL alone", lambda each: epoch.number(each.etl_alone_seconds), is_whole),
        (
            "compute",
            lambda each: epoch.number(each.parts.compute_alone_seconds + each.parts.interference_seconds),
            is_whole,
        ),
        ("stall", lambda each: epoch.number(each.parts.stall_seconds), is_whole),
        ("host wait", lambda each: epoch.number(each.host_wait_seconds), is_whole and report.shows_host_wait()),
        ("samples/s", lambda each: f"{each.samples_per_second:,.0f}", is_whole),
        ("ratio", lambda each: "1" if each.ratio is None else f"{each.ratio.estimate:.2f}", True),
        ("95% interval", lambda each: bounds(each.ratio), True),
        ("samples", lambda each: "" if each.sameness is None else each.sameness.describe(), report.shows_sameness()),
        ("verdict", _verdict, is_whole or says_more),
        ("CPU s/1,000", lambda each: f"{each.cpu_seconds_per_1000:.2f}", is_whole),
        ("peak MB", lambda each: f"{each.peak_memory_nbytes / 1e6:,.0f}", is_whole),
        (
            "device MB",
            lambda each: f"{(each.peak_device_memory_nbytes or 0) / 1e6:,.0f}",
            is_whole and has_device_memory,
        ),
        ("read MB", lambda each: f"{each.read_nbytes / 1e6:,.0f}", is_whole),
        (
            "pays off after",
            lambda each: "" if each.presaving is None else pays_off(each.presaving.break_even_epochs, report),
            is_whole,
        ),
        ("parts", lambda each: _bar(each, longest), True),
    ]
    shown = [(heading, cell) for heading, cell, is_shown in columns if is_shown]
    for heading, _ in shown:
        is_text = heading in ("strategy", "samples", "verdict", "parts")
        table.add_column(heading, justify="left" if is_text else "right")
    for each in report.strategies:
        table.add_row(*(cell(each) for _, cell in shown), style="dim strike" if each.disqualified else "")
    return table


def _ranks(report: ReportData, epoch: Scale) -> Table:
    table = Table("strategy", title=f"Ranks: {epoch.unit} per epoch", caption=RANKS_LEGEND)
    for column in ("rank", "wall", "stall", "host wait", "steps", "waits", "MB"):
        table.add_column(column, justify="right")
    for result in report.strategies:
        for each in result.ranks:
            waits = each.rank_wait_seconds
            table.add_row(
                result.name if each.rank == 0 else "",
                str(each.rank),
                epoch.number(each.wall_seconds),
                epoch.number(each.stall_seconds),
                epoch.number(each.host_wait_seconds),
                epoch.number(each.compute_seconds),
                "" if waits is None else epoch.number(waits),
                f"{each.peak_memory_nbytes / 1e6:,.0f}",
            )
    return table


def _stages(report: ReportData) -> Table:
    stages = report.stages
    table = Table(title=f"Where to presave: loading alone, {stages[-1].strategy}", caption=STAGE_LEGEND)
    table.add_column("presaved after")
    write = time_scale(stage.write_seconds for stage in stages)
    epoch = time_scale(stage.wall_seconds for stage in stages)
    for column in ("samples/s", "MB on disk", f"{write.unit} to write", f"epoch, {epoch.unit}", "pays off after"):
        table.add_column(column, justify="right")
    table.add_column(f"{COMPUTE[0]} {INTERFERENCE[0]}")
    fastest = max(stage.etl_samples_per_second for stage in stages)
    largest = max(1, *(stage.nbytes for stage in stages))
    for stage in stages:
        table.add_row(
            "no store" if stage.stage == "raw" else stage.stage,
            f"{stage.etl_samples_per_second:,.0f}",
            f"{stage.nbytes / 1e6:,.1f}",
            write.number(stage.write_seconds),
            f"{'about ' if stage.wall_is_estimated else ''}{epoch.number(stage.wall_seconds)}",
            "" if stage.stage == "raw" else pays_off(stage.break_even_epochs, report),
            _halves(stage.etl_samples_per_second / fastest, stage.nbytes / largest),
            style="dim strike" if stage.disqualified else "",
        )
    return table


def _show_scenario(scenario: Scenario, console: Console) -> None:
    epoch = time_scale(each.wall_seconds for each in scenario.strategies)
    table = Table(title=f"What if {scenario.what_if}: predicted, {epoch.unit} per epoch", caption=WHAT_IF_LEGEND)
    table.add_column("strategy")
    for column in ("wall", "stall", "utilisation", "CPUs for 90%"):
        table.add_column(column, justify="right")
    table.add_column("prediction")
    for each in scenario.strategies:
        table.add_row(
            each.strategy,
            epoch.number(each.wall_seconds),
            epoch.number(each.stall_seconds),
            percent(each.accelerator_utilisation),
            cpus_wanted(each),
            prediction_kind(each),
        )
    print_table(table, console, first=("wall", "prediction", "utilisation", "stall"))
    for line in scenario_notes(scenario):
        console.print(line)


def _show_checks(report: ReportData, console: Console, is_whole: bool) -> None:
    held = [check.rule for check in report.checks if check.held]
    named = f": {', '.join(held)}" if is_whole else ""
    console.print(f"fairness: {len(held)} of {len(report.checks)} rules checked and held{named}")
    for check in report.checks:
        if check.held:
            continue
        word = "not checked" if check.held is None else "not held"
        broken = "; ".join(f"{name}: {reason}" for name, reason in check.broken_by.items())
        console.print(f"  {check.rule} {word}: {broken or check.evidence}", style="red")


def _verdict(result: StrategyResult) -> str:
    if result.verdict == "too few rounds" and result.ratio is not None:
        return f"too few rounds: {result.ratio.count}"
    return result.verdict


def _losses(result: StrategyResult) -> str:
    """Return what an epoch loses, as shares of its wall time: the sum, and each cause of at least 1%."""
    losses, wall = result.losses, result.parts.wall_seconds
    causes = {
        "start-up": losses.start_up_seconds,
        "storage": losses.storage_seconds,
        "CPU": losses.cpu_seconds,
        "transfer": losses.transfer_seconds,
        "interference": result.parts.interference_seconds,
    }
    if losses.storage_seconds is None:
        causes["storage or CPU"] = result.parts.stall_seconds - losses.start_up_seconds
    shares = {name: seconds / wall for name, seconds in causes.items() if seconds is not None}
    parts = [f"{name} {share:.0%}" for name, share in shares.items() if share >= MIN_LOSS]
    lost = losses.lost_seconds / wall
    if lost < -MIN_LOSS:  # noise: compute alone was measured at another moment
        return f"{result.name} loses nothing: its epochs take {lost / (lost - 1):.0%} less than compute alone"
    return f"{result.name} loses {max(0.0, lost):.0%}{': ' if parts else ''}{', '.join(parts)}"


def _bar(result: StrategyResult, longest: float) -> Bar:
    styles = {"compute": COMPUTE, "interference": INTERFERENCE, "stall": STALL}
    segments = bar_segments(result.parts)
    return Bar([(*styles[kind], drawn / longest) for kind, _, drawn, _ in segments if kind in styles])


def _halves(speed: float, size: float) -> Bar:
    """Return two bars side by side, each at most half as long as the cell."""
    return Bar([(*COMPUTE, speed / 2), (" ", "", (1 - speed) / 2), (*INTERFERENCE, size / 2)])
