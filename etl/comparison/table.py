"""A report in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from etl.comparison.report import Interval, Prediction, Report, StrategyResult

BAR_WIDTH = 16
LEGEND = (
    "Seconds of one epoch. wall = compute alone █ + interference ▒ + stall ░ + harness + unexplained (at most "
    "{worst:.2%}); ratio: wall over that of {reference}, paired within rounds, with a 95% interval; predicted: before "
    "anything was timed (its error, and that with compute as fast as it was in the rounds)"
)


def show_report(report: Report, console: Console) -> None:
    """Print it: what to do, the strategies, the stages, and what was checked."""
    if report.unchecked:
        console.print(f"RULES NOT CHECKED: {', '.join(report.unchecked)}", style="bold red")
    if report.stopped_early:
        console.print(f"STOPPED EARLY, after {report.rounds} rounds", style="bold yellow")
    for sentence in report.recommendation:
        console.print(sentence, style="bold", highlight=False)
    console.print(_strategies(report))
    worst = max(abs(each.parts.unexplained_seconds) / each.parts.wall_seconds for each in report.strategies)
    console.print(LEGEND.format(worst=worst, reference=report.reference), highlight=False, style="dim")
    for result in report.strategies:
        for reason in result.disqualified:
            console.print(f"{result.name} is disqualified: {reason}", style="red", highlight=False)
    if report.stages:
        console.print(_stages(report))
    _show_checks(report, console)
    for line in (*report.noise.warnings, *report.notes):
        console.print(line, highlight=False)
    console.print(
        f"{report.rounds} rounds of {report.measured_records:,} records in {report.seconds:.0f} s",
        highlight=False,
        style="dim",
    )


def _strategies(report: Report) -> Table:
    table = Table(title=report.title, title_justify="left")
    table.add_column("strategy")
    columns = (
        "wall",
        "ETL alone",
        "compute",
        "stall",
        "samples/s",
        "ratio",
        "predicted",
        "CPU s/1,000",
        "peak MB",
        "read MB",
    )
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("pays off after", justify="right")
    table.add_column("")
    longest = max(each.parts.wall_seconds for each in report.strategies)
    for each in report.strategies:
        parts = each.parts
        table.add_row(
            each.name,
            f"{parts.wall_seconds:,.3g}",
            f"{each.etl_alone_seconds:,.3g}",
            f"{parts.compute_alone_seconds + parts.interference_seconds:,.3g}",
            f"{parts.stall_seconds:,.3g}",
            f"{each.samples_per_second:,.0f}",
            _ratio(each),
            "" if each.prediction is None else _prediction(each.prediction),
            f"{each.cpu_seconds_per_1000:.2f}",
            f"{each.peak_memory_nbytes / 1e6:,.0f}",
            f"{each.read_nbytes / 1e6:,.0f}",
            "" if each.presaving is None else pays_off(each.presaving.break_even_epochs, report),
            _bar(each, longest),
            style="dim strike" if each.disqualified else "",
        )
    return table


def _stages(report: Report) -> Table:
    stages = report.stages
    table = Table(title=f"Where to cut: loading alone, {stages[-1].strategy}", title_justify="left")
    table.add_column("presaved after")
    for column in ("samples/s", "MB on disk", "s to write", "epoch s", "pays off after"):
        table.add_column(column, justify="right")
    table.add_column("samples/s against disk")
    fastest = max(stage.etl_samples_per_second for stage in stages)
    largest = max(1, *(stage.nbytes for stage in stages))
    for stage in stages:
        table.add_row(
            "no store" if stage.stage == "raw" else stage.stage,
            f"{stage.etl_samples_per_second:,.0f}",
            f"{stage.nbytes / 1e6:,.1f}",
            f"{stage.write_seconds:,.3g}",
            f"{'about ' if stage.wall_is_estimated else ''}{stage.wall_seconds:,.3g}",
            "" if stage.stage == "raw" else pays_off(stage.break_even_epochs, report),
            Text("█" * round(BAR_WIDTH * stage.etl_samples_per_second / fastest), "green")
            + Text(" ")
            + Text("▒" * round(BAR_WIDTH * stage.nbytes / largest), "yellow"),
            style="dim strike" if stage.disqualified else "",
        )
    return table


def _show_checks(report: Report, console: Console) -> None:
    held = [check.rule for check in report.checks if check.held]
    console.print(
        f"fairness: {len(held)} of {len(report.checks)} rules checked and held: {', '.join(held)}", highlight=False
    )
    for check in report.checks:
        if check.held:
            continue
        word = "not checked" if check.held is None else "not held"
        broken = "; ".join(f"{name}: {reason}" for name, reason in check.broken_by.items())
        console.print(f"  {check.rule} {word}: {broken or check.evidence}", style="red", highlight=False)


def _ratio(result: StrategyResult) -> str:
    if result.ratio is None:
        return "1"
    if result.verdict == "no difference shown":
        return f"{show_interval(result.ratio)} no difference shown"
    return show_interval(result.ratio)


def show_interval(ratio: Interval) -> str:
    """The median, and the interval in parentheses."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.2f} ({ratio.rounds} rounds: too few)"
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def pays_off(epochs: float | None, report: Report) -> str:
    """After how many epochs, or never; nothing where there is no strategy without a store to compare with."""
    if all(each.stage is not None for each in report.strategies):
        return ""
    return "never" if epochs is None else f"{epochs:,.1f} epochs"


def _prediction(prediction: Prediction) -> str:
    errors = [f"{error:+.0%}" for error in (prediction.error, prediction.at_speed_error) if error is not None]
    return f"{prediction.wall_seconds:,.3g} ({', '.join(errors)})"


def _bar(result: StrategyResult, longest: float) -> Text:
    parts = result.parts

    def cells(seconds: float) -> int:
        return max(0, round(BAR_WIDTH * seconds / longest))

    return (
        Text("█" * cells(parts.compute_alone_seconds), "green")
        + Text("▒" * cells(parts.interference_seconds), "yellow")
        + Text("░" * cells(parts.stall_seconds), "red")
    )
