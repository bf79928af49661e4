"""A study: a plan that is stated before anything is measured, and results, kept in a journal as they come."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

import etl
from benchmarks.console import print_table, say_failure, wide_console
from benchmarks.journal import Journal, JournalError, Key, Kind, Result, read_lines
from benchmarks.measuring.statistics import Interval
from benchmarks.measuring.values import JsonValues
from benchmarks.servers import ROOT

# The journals that are committed: what README and docs say comes from them (benchmarks/evidence.py).
FOLDER = ROOT / "benchmarks" / "studies" / "results"
INTERRUPTED = 130
# Versions of this project's own code, which a study does not compare.
OWN_VERSIONS = {"fair-etl", "instruments"}
Returned = TypeVar("Returned")


@dataclass(frozen=True)
class Plan(JsonValues):
    """The plan of a study, stated before it runs.

    Attributes
    ----------
    number : str
        Rounds, pairs or comparisons.
    nominal_error : str
        The error rate that its intervals or verdicts promise.
    primary : str
        The metric that answers the question.
    """

    question: str
    arms: str
    number: str
    nominal_error: str
    stopping: str
    exclusions: str
    primary: str


def run_study(
    kind: Kind[Key, Result],
    path: Path,
    plan: Plan,
    header: Mapping[str, Any],
    wanted: Sequence[Key] | Callable[[Mapping[Key, Result]], Sequence[Key]],
    measure: Callable[[Key], Result],
    show: Callable[[dict[Key, Result], Console], None],
    name: Callable[[Key], str] = str,
    environment: Mapping[str, Any] | None = None,
) -> int:
    """Measure what is missing, show all results, and return the exit code: 2 if the study failed.

    An interrupted study goes on if kind, plan and header are the same, so the header must have all that decides what is
    measured. It does not have the code: name another file after a change of it. Results of another machine, or of other
    versions of packages, are shown, but nothing is added to them.

    Parameters
    ----------
    kind, path, header
        As `Journal` takes them.
    plan : Plan
        Printed first, and kept in the header.
    wanted : sequence, or callable
        Keys of the results, in the order in which they are measured; or a function that returns them, called with the
        results so far before each measurement.
    name : callable
        Returns what a key is called while it is measured.
    environment : mapping of str to JSON values, optional
        As `describe_environment` has returned it; by default it is called.
    """
    errors = Console(stderr=True)
    keys = wanted if callable(wanted) else lambda _: wanted
    for name_of_field, stated in plan.to_json().items():
        errors.print(f"{name_of_field.replace('_', ' ')}: {stated}", highlight=False, soft_wrap=True)
    errors.print(f"Results are kept in {path}; an interrupted study goes on.", highlight=False, soft_wrap=True)
    took: list[float] = []
    try:
        here = environment or describe_environment()
        journal = Journal(kind, path, {"plan": plan.to_json(), **header}, here)
        while missing := [each for each in keys(journal.results) if each not in journal.results]:
            if not took:
                refuse_other_environment(path, here)
            left = f", {len(missing) * statistics.median(took) / 60:.0f} min left" if took else ""
            errors.print(f"{len(took) + 1} of {len(took) + len(missing)}{left}: {name(missing[0])}", highlight=False)
            started = time.monotonic()
            journal.note(missing[0], measure(missing[0]))
            took.append(time.monotonic() - started)
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        say_failure(error, errors)
        return 2
    except KeyboardInterrupt:
        errors.print("Interrupted; the same command continues from here.", highlight=False)
        return INTERRUPTED
    if not took:
        say_complete(path, errors)
    show({each: journal.results[each] for each in keys(journal.results)}, wide_console())
    return 0


def say_complete(path: Path, console: Console) -> None:
    """Say that nothing was measured, because a journal has all results."""
    done = f"Nothing was measured: {path} had all results. To measure here, name another file: --samples FILE."
    console.print(done, highlight=False, soft_wrap=True)


def refuse_other_environment(path: Path, here: Mapping[str, Any]) -> None:
    """Raise `JournalError` if the first results in a journal are of another processor, number of CPUs, or package."""
    there = next((line["environment"] for line in read_lines(path) if "environment" in line), here)
    machine, of_here = there["machine"], here["machine"]
    if any(machine[name] != of_here[name] for name in ("processor", "cpus")):
        raise JournalError(
            f"{path} was measured on {machine['cpus']} CPUs ({machine['processor']}), and here are {of_here['cpus']} "
            f"({of_here['processor']}); name another file: --samples FILE"
        )
    versions, of_here = there["versions"], here["versions"]
    names = sorted((versions.keys() | of_here.keys()) - OWN_VERSIONS)
    changed = [name for name in names if versions.get(name) != of_here.get(name)]
    if changed:
        was, now = (", ".join(f"{name} {each.get(name)}" for name in changed) for each in (versions, of_here))
        raise JournalError(f"{path} was measured with {was}, and here is {now}; name another file: --samples FILE")


def in_fresh_process(function: Callable[..., Returned], *arguments: Any, method: str = "spawn") -> Returned:
    """Return `function(*arguments)`, called in a process that was started for it."""
    with ProcessPoolExecutor(1, get_context(method)) as fresh:
        return fresh.submit(function, *arguments).result()


def describe_environment() -> dict[str, Any]:
    """Return commit, machine with its kernel's settings, and versions, as JSON values."""
    describe = ["git", "describe", "--always", "--exclude=*", "--dirty", "--abbrev=12"]
    try:
        commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        commit = ""
    return {
        "commit": commit or "unknown",
        "machine": etl.doctor.describe_machine(),
        "versions": etl.doctor.describe_versions(),
    }


def as_markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of lines of cells; the first line is the heading."""
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def describe_ratio(ratio: Interval, digits: int = 3) -> str:
    """Return a ratio with its interval, if it has one."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.estimate:.{digits}f}"
    return f"{ratio.estimate:.{digits}f} ({ratio.low:.{digits}f} to {ratio.high:.{digits}f})"


def print_lines(title: str, lines: Sequence[Sequence[str]], console: Console, keys: int = 1) -> None:
    """Print a table of lines of cells; the first line is the heading, and the first `keys` columns are names."""
    headings, *rows = lines
    table = Table(title=title)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < keys else "right")
    for row in rows:
        table.add_row(*row)
    print_table(table, console, keys=keys)


def study_parser(module: str, documentation: str | None, **counts: int) -> argparse.ArgumentParser:
    """Return a parser with an option for the journal, and one for each of `counts`, with its default."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=(documentation or "").partition("\n")[0].replace("%", "%%")
    )
    for name, default in counts.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=whole_number, default=default, metavar="N", help=f"default: {default}")
    folder = FOLDER.relative_to(ROOT)
    parser.add_argument("--samples", type=Path, metavar="FILE", help=f"the journal (default: in {folder})")
    return parser


def whole_number(text: str) -> int:
    """Return the number in `text`, which is at least 0."""
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, not {number}")
    return number
