"""Tables of the peers, made from the journal alone: for a terminal, the documents, and a short one for the README."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.console import say
from benchmarks.journal import read_lines, results_in
from benchmarks.measuring.statistics import Interval
from benchmarks.peers.pairs import DOCUMENTED, PAIRS, TUNED, Key, PairResult, ratio_of, tuned_arguments
from benchmarks.peers.rows import AGAIN, CROPS, OURS, PRESAVED, RAW, ROWS, SLOWED, TASKS, Row
from benchmarks.studies.study import as_markdown, describe_ratio, print_lines

TITLES = {
    RAW: "decoded and resized in every epoch",
    CROPS: "decoded in every epoch, random crops, flipped",
    PRESAVED: "kept as pixels, normalised in every epoch",
}
# Standard deviations of pixels below which images count as the same: float32 was rounded at another step.
SAME = 0.0005
# The README shows libraries from this fraction of this project's rate on.
LISTED = 0.6
HEADINGS = ("settings", "images/s", "of ours", "pairs", "CPU s per 1,000", "peak MB")


@dataclass(frozen=True)
class Measured:
    """A row as documented or, if tuned, with the settings that were the fastest; its pairs, and records of an epoch."""

    row: Row
    is_tuned: bool
    pairs: Sequence[PairResult]
    records: int

    @property
    def ratio(self) -> Interval:
        """The rate over that of this project's loader, both as documented or both tuned."""
        return ratio_of(self.pairs)

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of its line, without its name, one for each of `HEADINGS`."""
        others = [each.other for each in self.pairs if each.other is not None]
        cpu = statistics.fmean(each.cpu_seconds / len(each.epochs) for each in others)
        arguments = ", ".join(f"{name}={value}" for name, value in self.pairs[0].arguments.items())
        peak = max(each.peak_nbytes for each in others)
        return (
            (arguments or "none was faster") if self.is_tuned else "as documented",
            f"{self.records / statistics.median(statistics.fmean(each.epochs) for each in others):,.0f}",
            "1" if self.row.name == OURS else _bold_if_faster(self.ratio),
            str(len(self.pairs)),
            f"{1000 * cpu / self.records:.2f}",
            f"{peak / 1e6:,.0f}" if peak else "",
        )


def _bold_if_faster(ratio: Interval) -> str:
    return f"**{describe_ratio(ratio)}**" if ratio.low is not None and ratio.low > 1 else describe_ratio(ratio)


class PeerStudy:
    """A journal of pairs: its rows by task, and where they were measured."""

    def __init__(self, path: Path) -> None:
        self.header, *lines = read_lines(path)
        self.environments: list[Mapping[str, Any]] = [each["environment"] for each in lines if "environment" in each]
        self.results: dict[Key, PairResult] = results_in(lines, PAIRS)

    def rows(self, task: str) -> list[Measured]:
        """Return the measured rows of a task, the fastest first, each as documented and, below that, tuned."""
        found = [
            Measured(row, arm == TUNED, pairs, self.header["photographs"])
            for row in ROWS
            if row.task == task
            for arm in (DOCUMENTED, TUNED)
            if (pairs := self._pairs(row, arm)) and not any(each.failure for each in pairs)
        ]
        fastest = {each.row.name: each.ratio.estimate for each in found if not each.is_tuned}
        return sorted(found, key=lambda each: (-fastest.get(each.row.name, 0.0), each.row.name, each.is_tuned))

    def missing(self) -> dict[str, str]:
        """Return the reason for each row that has no result, by task and name."""
        failed = {(task, name): each.failure for (task, name, *_), each in self.results.items() if each.failure}
        absent = {(row.task, row.name): self.header["missing"].get(row.peer, "") for row in ROWS}
        found = {key: reason for key, reason in (absent | failed).items() if reason}
        return {f"{name}, {TITLES[task]}": reason.strip().splitlines()[-1] for (task, name), reason in found.items()}

    def _pairs(self, row: Row, arm: str) -> list[PairResult]:
        if row.name != OURS:
            return [each for key, each in self.results.items() if key[:3] == (row.task, row.name, arm)]
        arguments = {} if arm == DOCUMENTED else tuned_arguments(self.results, row.task, OURS)
        pairs = [each for (task, _, its, _), each in self.results.items() if (task, its) == (row.task, arm)]
        return [replace(each, other=each.base, arguments=arguments) for each in pairs if not each.failure]

    def describe(self) -> str:
        """Return where the pairs were measured, in a sentence."""
        machine = self.environments[0]["machine"]  # results of another one are not added
        commits = list(dict.fromkeys(each["commit"] for each in self.environments))
        return (
            f"Measured at commit{'s' if commits[1:] else ''} {', '.join(commits)} on {machine['cpus']} CPUs "
            f"({machine['processor']}): {self.header['photographs']:,} photographs, batches of "
            f"{self.header['batch_size']}, {self.header['workers']} workers."
        )


def show(path: Path, console: Console) -> None:
    """Print a table for each task, and the rows that could not be measured."""
    study = PeerStudy(path)
    for task in TASKS:
        if rows := study.rows(task):
            lines = [(each.row.name, *each.cells, describe_images(each)) for each in rows]
            print_lines(f"Photographs {TITLES[task]}", [("loader", *HEADINGS, "note"), *lines], console, keys=2)
    for name, reason in study.missing().items():
        say(f"{name}: {reason}", console, "red")


def render(path: Path) -> str:
    """Return a table for each task, as Markdown."""
    study = PeerStudy(path)
    parts = [study.describe()]
    for task in TASKS:
        lines: list[Sequence[str]] = [(TITLES[task], *HEADINGS, "note")]
        above = ""
        for each in study.rows(task):
            lines.append(("" if each.row.name == above else each.row.name, *each.cells, describe_images(each)))
            above = each.row.name
        parts.append(as_markdown(lines))
    if missing := study.missing():
        parts.append(f"Not in the tables: {'; '.join(f'{name} ({reason})' for name, reason in missing.items())}.")
    return "\n\n".join(parts) + "\n"


def summarise(path: Path) -> str:
    """Return one table of all tasks, with the fastest row of each library, as Markdown.

    Libraries whose every row is slower than `LISTED` times this project's are only named.
    """
    study = PeerStudy(path)
    best: dict[str, dict[str, str]] = {}
    fastest: dict[str, float] = {}
    for task in TASKS:
        for each in sorted(study.rows(task), key=lambda each: -each.ratio.estimate):
            if each.row.peer != ROWS[0].peer:
                library = each.row.name.partition(",")[0].removesuffix(" on the CPU")
                best.setdefault(library, {}).setdefault(task, _bold_if_faster(each.ratio))
                fastest[library] = max(each.ratio.estimate, fastest.get(library, 0.0))
            elif each.row.name in (AGAIN, SLOWED) and not each.is_tuned:
                best.setdefault(each.row.name, {})[task] = _bold_if_faster(each.ratio)
            elif each.row.name == OURS:  # the tuned one is the last
                best.setdefault(OURS, {})[task] = f"1: {each.cells[1]} images/s"
    slow = [name for name in best if fastest.get(name, 1.0) < LISTED]
    lines = [("loader", *(TITLES[task] for task in TASKS))]
    lines += [(name, *(cells.get(task, "") for task in TASKS)) for name, cells in best.items() if name not in slow]
    named = f" Below {LISTED} in all columns: {', '.join(slow)}." if slow else ""
    return f"{study.describe()} Rates over this project's, with 95% intervals.{named}\n\n{as_markdown(lines)}\n"


def describe_images(measured: Measured) -> str:
    """Return how far the images of a row are from this project's, and its note."""
    distance = 0.0 if measured.row.name == OURS else measured.pairs[0].distance or 0.0
    close = f"pixels within {distance:.3f}" if distance >= SAME else ""
    return "; ".join(filter(None, ("" if measured.is_tuned else measured.row.note, close)))
