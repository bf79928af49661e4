"""Results of a task as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.console import print_table, say
from benchmarks.measuring.statistics import MIN_ROUNDS
from benchmarks.peers.peer_results import PeerResults, RawRow
from benchmarks.peers.rows import OURS, PRESAVED, RAW
from etl.comparison.tuning.tuner import tuned_label

TITLES = {
    RAW: "Photographs decoded in every epoch",
    PRESAVED: "Pixels kept as uint8, gathered and normalised",
}
COLUMNS = (
    "images/s",
    "of ours",
    "95% interval",
    "waiting images/s",
    "images",
    "CPU s per 1,000",
    "peak MB",
    "to prepare s",
)
CAPTION = (
    "images/s: loading alone, mean over rounds. of ours: images/s over those of fair-etl, both as documented or both "
    "tuned, with intervals from paired rounds that hold together in 19 of 20 tables; it takes "
    f"{MIN_ROUNDS} rounds. waiting: images/s with a simulated device that takes 50 ms a batch and no CPU. "
    "images: how far they are those of the reference, the first loader. CPU and peak memory (with mapped pages of "
    "data files): of the loader and its workers."
)


def show(results: PeerResults, notes: Sequence[str], console: Console) -> None:
    """Print the table of a task: the fastest loader first, and last those that could not be measured."""
    table = Table(title=TITLES[results.task])
    table.add_column("loader")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    table.add_column("note")
    for row in sorted(results.rows, key=lambda each: -each.images_per_second):
        described = [*row.disqualified, describe_settings(row) or row.note]
        name = tuned_label(row.name) if row.is_tuned else row.name
        table.add_row(name, *_cells(row, results), "; ".join(filter(None, described)))
    for name, reason in results.missing.items():
        table.add_row(name, *["n/a"] * len(COLUMNS), reason)
    print_table(table, console)
    for note in notes:
        say(note, console)


def describe_settings(row: RawRow) -> str:
    """Return the settings of a tuned row as keyword arguments; empty if there are none."""
    return ", ".join(f"{name}={value}" for name, value in row.settings.items())


def _cells(row: RawRow, results: PeerResults) -> list[str]:
    ratio = results.ratio(row)
    if ratio is None:
        shown = ""
    elif ratio.low is None:
        shown = f"none: {ratio.count} of {MIN_ROUNDS} rounds"
    else:
        shown = f"{ratio.low:.2f} to {ratio.high:.2f}"
    return [
        f"{row.images_per_second:,.0f}",
        "1.00" if row.name == OURS else "n/a" if ratio is None else f"{ratio.estimate:.2f}",
        shown,
        f"{row.waiting_per_second:,.0f}",
        row.images,
        f"{row.cpu_seconds_per_1000:.2f}",
        f"{row.peak_memory_nbytes / 1e6:,.0f}",
        "" if row.prepare_seconds is None else f"{row.prepare_seconds:.1f}",
    ]
