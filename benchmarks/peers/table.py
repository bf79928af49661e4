"""Reports of `etl compare` over the rows of a task, as a table."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.console import print_table, say
from benchmarks.measuring.statistics import MIN_ROUNDS, Interval, paired_ratios, ratio_interval
from benchmarks.peers.rows import OURS, PRESAVED, RAW, Row
from etl.comparison.report import Report, StrategyResult

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
    "lines",
    "to prepare s",
)
CAPTION = (
    "images/s: loading alone, median over rounds. of ours: images/s over those of fair-etl in the same round, the "
    f"Hodges-Lehmann estimate over rounds with the interval of the signed-rank test, which needs {MIN_ROUNDS} rounds. "
    "waiting: images/s with a simulated device that takes 50 ms a batch and no CPU. images: how far they are those of "
    "the reference, the first loader. CPU and peak memory (with mapped pages of files): of the loader and its workers. "
    "lines: of user code to load + to prepare, without imports and what several loaders share."
)
FOLDER = Path(__file__).parent


def show(report: Report, rows: Sequence[Row], missing: Mapping[str, str], console: Console) -> None:
    """Print the table of a task: the fastest loader first, and last those that could not be measured.

    Parameters
    ----------
    report : Report
        The comparison of the rows.
    rows : sequence of Row
        The rows of the task.
    missing : mapping of str to str
        The reason for each loader that was not compared, by its name. The notes of the report have those for loaders
        that failed in the comparison.
    console : Console
        The console to print on.
    """
    table = Table(title=TITLES[rows[0].task])
    table.add_column("loader")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    table.add_column("note")
    by_name = {row.name: row for row in rows}
    for result in sorted(report.strategies, key=lambda each: each.etl_alone_seconds):
        row = by_name[result.name]
        notes = [*result.disqualified, row.note]
        table.add_row(row.name, *_cells(row, result, report), "; ".join(filter(None, notes)))
    measured = {each.name for each in report.strategies}
    for row in rows:
        if row.name not in measured:
            table.add_row(row.name, *["n/a"] * len(COLUMNS), missing.get(row.name, "failed, see below"))
    print_table(table, console)
    for note in report.notes:
        say(note, console)


def loading_ratio(theirs: StrategyResult, ours: StrategyResult) -> Interval | None:
    """Return the ratio of images/s of loading alone, paired within rounds; None if they have no common round."""
    ratios = paired_ratios(_seconds_by_round(ours), _seconds_by_round(theirs))
    return ratio_interval(ratios) if ratios else None


def _seconds_by_round(result: StrategyResult) -> dict[int, float]:
    return {each.round: each.etl_alone_seconds for each in result.rounds if each.etl_alone_seconds is not None}


def _cells(row: Row, result: StrategyResult, report: Report) -> list[str]:
    ours = next((each for each in report.strategies if each.name == OURS), None)
    ratio = None if ours is None else loading_ratio(result, ours)
    if ratio is None or result is ours:
        shown = ""
    elif ratio.low is None:
        shown = f"none: {ratio.count} of {MIN_ROUNDS} rounds"
    else:
        shown = f"{ratio.low:.2f} to {ratio.high:.2f}"
    return [
        f"{report.source_records / result.etl_alone_seconds:,.0f}",
        "n/a" if ratio is None else f"{ratio.estimate:.2f}",
        shown,
        f"{result.samples_per_second:,.0f}",
        "reference" if result.sameness is None else result.sameness.describe(),
        f"{result.cpu_seconds_per_1000:.2f}",
        f"{result.peak_memory_nbytes / 1e6:,.0f}",
        " + ".join(map(str, count_lines((FOLDER / f"{row.peer}.py").read_text(), row.loader))),
        "" if result.presaving is None else f"{result.presaving.write_seconds:.1f}",
    ]


def count_lines(source: str, loader: str) -> list[int]:
    """Return the lines that a user writes to load and, if anything is prepared, those to prepare it.

    Blank lines, comments, docstrings, imports and decorators of `prepare` do not count.

    Parameters
    ----------
    source : str
        Code of the file that defines the loader. It is not run.
    loader : str
        The function, with `loader.prepare = another_function` beside it, or the class, with a static method `prepare`.
    """
    module = ast.parse(source)
    definitions = {each.name: each for each in module.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    code = _lines_of_code(definitions[loader])
    prepare = _find_prepare(definitions, module, loader)
    if prepare is None:
        return [_count(source, code)]
    prepared = _lines_of_code(prepare)
    decorators = {number for each in prepare.decorator_list for number in _lines(each)}
    return [_count(source, code - prepared - decorators), _count(source, prepared)]


def _find_prepare(
    definitions: Mapping[str, ast.FunctionDef | ast.ClassDef], module: ast.Module, loader: str
) -> ast.FunctionDef | ast.ClassDef | None:
    for each in definitions[loader].body:
        if isinstance(each, ast.FunctionDef) and each.name == "prepare":
            return each
    for statement in module.body:
        match statement:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id=name), attr="prepare")], value=ast.Name(id=function)
            ) if name == loader:
                return definitions[function]
    return None


def _lines_of_code(definition: ast.stmt) -> set[int]:
    """Return the lines of a definition without its docstrings and imports."""
    found = _lines(definition)
    for node in ast.walk(definition):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found -= _lines(node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            found -= _lines(node.body[0])
    return found


def _count(source: str, lines: set[int]) -> int:
    return sum(
        number in lines and bool(line.partition("#")[0].strip()) for number, line in enumerate(source.splitlines(), 1)
    )


def _lines(node: ast.stmt | ast.expr) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
