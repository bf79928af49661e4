"""The samples as tables, one for each task."""

from __future__ import annotations

import ast
import inspect
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.console import print_table, say
from benchmarks.measuring.statistics import MIN_ROUNDS, ratio_interval
from benchmarks.peers.comparison import Samples
from benchmarks.peers.handlers import LoaderMetrics
from benchmarks.peers.loader import OURS, PRESAVED, RAW, TASKS, Loader

TITLES = {
    RAW: "Photographs decoded in every epoch",
    PRESAVED: "Pixels kept as uint8, gathered and normalised",
}
COLUMNS = (
    "images/s",
    "of ours",
    "95% interval",
    "waiting images/s",
    "first batch s",
    "CPU s per 1,000",
    "peak MB",
    "lines",
    "to prepare s",
)
CAPTION = (
    "Medians over rounds. of ours: images/s over those of fair-etl in the same round, the Hodges-Lehmann estimate over "
    f"rounds with the interval of the signed-rank test, which needs {MIN_ROUNDS} rounds; "
    "waiting: images/s with a simulated device that takes 50 ms a batch and no CPU; first batch: from calling the "
    "user's code to a batch in memory; CPU and peak memory (with mapped pages of files) of the loader and its workers; "
    "lines: of user code to load + to prepare, without what several loaders share."
)


def show(loaders: Sequence[Loader], samples: Samples, missing: Mapping[str, str], console: Console) -> None:
    """Print a table for each task: the fastest loader first, and last those that could not be measured.

    Parameters
    ----------
    loaders : sequence of Loader
        The rows.
    samples : Samples
        Their samples.
    missing : mapping of str to str
        The reason for each loader that could not be measured, by its key.
    console : Console
        The console to print on.
    """
    for task in TASKS:
        rows = [loader for loader in loaders if loader.task == task]
        if not rows:
            continue
        table = Table(title=TITLES[task])
        table.add_column("loader")
        for column in COLUMNS:
            table.add_column(column, justify="right")
        table.add_column("note")
        ours = next((samples.metrics_of(loader.key) for loader in rows if loader.peer == OURS), {})
        measured = [loader for loader in rows if loader.key not in missing and samples.metrics_of(loader.key)]
        for loader in sorted(measured, key=lambda each: -_median(samples, each, _images_per_second)):
            table.add_row(loader.name, *_cells(loader, samples, ours), loader.note)
        for loader in rows:
            if loader not in measured:
                table.add_row(loader.name, *["n/a"] * len(COLUMNS), missing.get(loader.key, "not measured yet"))
        print_table(table, console)
    say(CAPTION, console)


def find_ratios(theirs: Mapping[int, LoaderMetrics], ours: Mapping[int, LoaderMetrics]) -> list[float]:
    """Divide their images/s by ours, in each round in which both were measured."""
    rounds = sorted({*theirs} & {*ours})
    return [theirs[number].images_per_second / ours[number].images_per_second for number in rounds]


def _cells(loader: Loader, samples: Samples, ours: Mapping[int, LoaderMetrics]) -> list[str]:
    ratios = find_ratios(samples.metrics_of(loader.key), ours)
    ratio = ratio_interval(ratios) if ratios else None
    if loader.peer == OURS:
        shown = ""
    elif ratio is None or ratio.low is None:
        shown = f"none: {len(ratios)} of {MIN_ROUNDS} rounds"
    else:
        shown = f"{ratio.low:.2f} to {ratio.high:.2f}"
    lines = [str(count_lines(code)) for code in (loader.load, loader.prepare) if code is not None]
    seconds = samples.prepared_seconds(loader.key)
    return [
        f"{_median(samples, loader, _images_per_second):,.0f}",
        "n/a" if ratio is None else f"{ratio.estimate:.2f}",
        shown,
        f"{_median(samples, loader, lambda each: each.waiting_images_per_second):,.0f}",
        f"{_median(samples, loader, lambda each: each.first_batch_seconds):.2f}",
        f"{_median(samples, loader, lambda each: each.cpu_seconds_per_1000):.2f}",
        f"{_median(samples, loader, lambda each: each.peak_memory) / 1e6:,.0f}",
        " + ".join(lines),
        "" if seconds is None else f"{seconds:.1f}",
    ]


def _images_per_second(metrics: LoaderMetrics) -> float:
    return metrics.images_per_second


def _median(samples: Samples, loader: Loader, metric: Callable[[LoaderMetrics], float]) -> float:
    return statistics.median(map(metric, samples.metrics_of(loader.key).values()))


def count_lines(code: Callable[..., Any]) -> int:
    """Count the lines that a user writes: without blank lines, comments, docstrings and imports.

    Imports are inside the functions only because the libraries are not installed where this project is tested.
    """
    source = textwrap.dedent(inspect.getsource(code))
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= _lines(node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            left_out |= _lines(node.body[0])
    lines = enumerate(source.splitlines(), 1)
    return sum(number not in left_out and bool(line.partition("#")[0].strip()) for number, line in lines)


def _lines(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
