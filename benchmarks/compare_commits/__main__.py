"""Whether commit B is slower or faster than commit A: `python -m benchmarks.compare_commits A B`.

Exit codes: 0 no figure of B is slower, 1 one is, 2 the two cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.compare_commits.commits import Commit, NoSuchCommit, extract
from benchmarks.compare_commits.table import as_json, show
from benchmarks.compare_commits.turns import MOST_SECONDS, Key, take_turns
from benchmarks.compare_commits.work import PHOTOGRAPHS, WORKS
from benchmarks.console import say_failure, wide_console
from benchmarks.judgement import DEAD_ZONE, Judgement, Verdict, judge_all
from benchmarks.measuring.processes import MeasurementError
from benchmarks.measuring.turns import DifferentWork
from benchmarks.names import names_among
from benchmarks.workload import find_photographs

MINUTES = 2.0
MOST_MINUTES = MOST_SECONDS / 60


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where a figure of B is slower, 2 where they cannot be compared."""
    options = parse(arguments)
    errors = Console(stderr=True)
    started = time.monotonic()
    dead_zone = options.dead_zone / 100
    try:
        a, b = extract(options.a), extract(options.b)
        judgements = compare(a, b, options.minutes * 60, dead_zone, errors, options.only)
    except (NoSuchCommit, DifferentWork, MeasurementError) as error:
        say_failure(error, errors)
        return 2
    show(a, b, judgements, dead_zone, time.monotonic() - started, wide_console())
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(a, b, judgements, dead_zone), indent=1) + "\n")
    return int(any(each.verdict is Verdict.SLOWER for each in judgements.values()))


def compare(
    a: Commit,
    b: Commit,
    seconds: float,
    dead_zone: float,
    console: Console,
    strategies: Sequence[str] = tuple(WORKS),
) -> dict[Key, Judgement]:
    """Measure both in turns, with progress on `console`; for each of `strategies` and each figure what follows."""
    find_photographs(PHOTOGRAPHS)  # made here, once, rather than by both at the same time
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"{a} and {b} in turns", total=1.0)
        pairs = take_turns(a, b, seconds, lambda done: bar.update(task, completed=done), strategies)
    return judge_all(pairs, dead_zone)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare_commits",
        description="Whether commit B is slower or faster than commit A, for each strategy's ETL alone and wall time.",
        epilog="Exit codes: 0 no figure of B is slower, 1 one is, 2 the two cannot be compared.",
    )
    parser.add_argument("a", metavar="A", help="a commit, as git names it")
    parser.add_argument("b", metavar="B", help="another one")
    parser.add_argument(
        "--minutes", type=minutes, default=MINUTES, metavar="M", help=f"of measuring (default: {MINUTES:g})"
    )
    parser.add_argument(
        "--dead-zone",
        type=float,
        default=DEAD_ZONE * 100,
        metavar="PERCENT",
        help=f"changes that are not told from noise; `make aa` says what it takes (default: {DEAD_ZONE * 100:g})",
    )
    parser.add_argument(
        "--only",
        type=names_among(WORKS, "strategy"),
        default=tuple(WORKS),
        metavar="STRATEGY,STRATEGY",
        help=f"gives all of the time to some of {', '.join(WORKS)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result for programs")
    return parser.parse_args(arguments)


def minutes(text: str) -> float:
    """A number of minutes above 0, and at most 5."""
    value = float(text)
    if not 0 < value <= MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most {MOST_MINUTES:g}, not {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
