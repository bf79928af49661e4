"""The terminal output of `etl doctor`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from etl.arguments import printable
from etl.doctor.check import Finding, Severity
from etl.doctor.examination import Examination
from etl.doctor.heap import Heap, Pauses
from etl.doctor.machine import OPTIONAL
from etl.doctor.stage_times import StageTimes
from etl.tables import encodable, print_table

SHOWN_TYPES = 15
# As wide as the longest severity and two spaces.
INDENT = " " * 15
STYLES = {
    Severity.SERIOUS: "bold red",
    Severity.WARNING: "yellow",
    Severity.NOTE: "cyan",
    Severity.FINE: "green",
    Severity.NOT_LOOKED_AT: "dim",
}


def show_examination(examination: Examination, console: Console) -> None:
    """Print the change to make first, then every finding and every optional package that is missing."""
    if examination.rank is not None:
        console.print(f"Examined: {examination.rank}.")
    first = examination.first
    if first is None:
        console.print("Nothing was found that slows training down.", style="bold green")
    else:
        console.print(f"First: {first.found}: {first.remedy}.", style="bold")
    if examination.seconds_per_batch is not None:
        batches = examination.batches_per_epoch
        seconds = examination.seconds_per_batch
        epoch = "" if batches is None else f"; an epoch of {batches:,} batches takes {seconds * batches:,.3g} s"
        console.print(f"A batch takes {seconds * 1e3:,.1f} ms{epoch}.")
    if examination.memory is not None:
        style = "bold red" if examination.memory.is_tight else None
        console.print(f"Memory: {examination.memory}.", style=style)
    for finding in examination.findings:
        _show(finding, console)
    for name in examination.machine.missing:
        console.print(
            f"{name} is not installed, so this is slower or unavailable: {OPTIONAL[name]}; pip install "
            "'fair-etl[fast]'",
            style="yellow",
        )


def show_stages(times: StageTimes, console: Console) -> None:
    """Print the milliseconds of each stage, warm and cold, and the speed of reading."""
    table = Table("stage", title="One record in one thread, stage by stage")
    for name in ("warm, ms", "cold, ms", "share, warm"):
        table.add_column(name, justify="right")
    total = sum(each.warm for each in times.stages)
    for each in times.stages:
        table.add_row(
            each.name,
            f"{each.warm:.3f}",
            "n/a" if each.cold is None else f"{each.cold:.3f}",
            f"{each.warm / total:.0%}" if total else "",
            style="bold" if each is times.slowest else None,
        )
    print_table(table, console)
    if times.nbytes:
        disk = "n/a" if times.disk_bytes_per_second is None else f"{times.disk_bytes_per_second / 1e6:,.0f} MB/s"
        console.print(
            f"Reading the files alone ({times.nbytes / 1e6:,.1f} MB): {disk} from the disk, "
            f"{times.memory_bytes_per_second / 1e6:,.0f} MB/s from memory."
        )
    if times.cold_failed is not None:
        console.print(f"Cold times are unknown: {times.cold_failed}", style="dim")


def show_heap(heap: Heap, console: Console) -> None:
    """Print the types that take the most memory, and the types that leak."""
    table = Table("type", title=f"{heap.objects:,} objects on the heap")
    table.add_column("objects", justify="right")
    table.add_column("MB", justify="right")
    for each in heap.types[:SHOWN_TYPES]:
        table.add_row(each.name, f"{each.count:,}", f"{each.nbytes / 1e6:,.1f}")
    print_table(table, console)
    for leak in heap.leaks:
        growth = ", ".join(f"{count:+,}" for count in leak.per_epoch)
        console.print(f"{leak.name} grows in every epoch: {growth} objects", style="bold red")
    if not heap.leaks:
        console.print("No type grows in every epoch.", style="green")


def show_pauses(pauses: Pauses, console: Console) -> None:
    """Print the garbage collections of each generation."""
    table = Table(title=f"Garbage collections while {pauses.batches} batches were trained on in {pauses.seconds:.2f} s")
    table.add_column("generation")
    for name in ("collections", "ms", "longest, ms", "ms a batch", "objects freed"):
        table.add_column(name, justify="right")
    for each in pauses.generations:
        table.add_row(
            str(each.generation),
            f"{each.count:,}",
            f"{each.seconds * 1e3:,.2f}",
            f"{each.longest_seconds * 1e3:,.2f}",
            f"{each.seconds / pauses.batches * 1e3:,.3f}",
            f"{each.freed:,}",
        )
    print_table(table, console)


def _show(finding: Finding, console: Console) -> None:
    severity = Text(f"{finding.severity.value:>{len(INDENT) - 2}}  ", style=STYLES[finding.severity])
    _wrapped(console, f"{finding.title}: {finding.found}", "", severity)
    if finding.evidence:
        _wrapped(console, finding.evidence, "dim")
    if finding.remedy is None:
        return
    _wrapped(console, f"Why it matters: {finding.why}.", "")
    _wrapped(console, f"Change: {finding.remedy}.", "bold")
    if finding.trial is not None:
        trial = finding.trial
        _wrapped(
            console,
            f"Tried: with this change {trial.unit} takes {trial.with_seconds * 1e3:,.1f} ms instead of "
            f"{trial.without_seconds * 1e3:,.1f} ms, {trial.ratio:.2f} times as long (95% interval {trial.low:.2f} to "
            f"{trial.high:.2f}).",
            "",
        )
    if finding.trial_failed is not None:
        _wrapped(console, f"Not tried: {finding.trial_failed}.", "dim")
    if (saving := finding.saving) is not None:
        _wrapped(console, f"{saving[0].upper()}{saving[1:]}.", "")


def _wrapped(console: Console, text: str, style: str, before: Text | str = INDENT) -> None:
    """Print `text` as indented lines. In the first line, `before` replaces the indentation."""
    shown = Text(encodable(printable(text), console.encoding))
    for line in shown.wrap(console, max(20, console.width - len(INDENT))):
        console.print(Text.assemble(before, line), style=style)
        before = INDENT
