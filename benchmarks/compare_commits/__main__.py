"""Compare two commits, measured in turns: `python -m benchmarks.compare_commits A B`.

Exit codes: 0 no metric of B is slower, 1 at least one is, 2 the commits cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.compare_commits.commits import Commit, NoSuchCommit, extract
from benchmarks.compare_commits.commits_table import as_json, show
from benchmarks.compare_commits.commits_turns import MAX_SECONDS, Key, take_turns
from benchmarks.compare_commits.commits_worker import PHOTOGRAPHS, WORKS
from benchmarks.console import comma_separated, progress_bar, say_failure, wide_console
from benchmarks.datasets import find_photographs
from benchmarks.measuring.processes import MeasurementError
from benchmarks.measuring.same_work import DifferentWork
from benchmarks.measuring.statistics import Outcome
from benchmarks.verdict import EQUIVALENCE_MARGIN, Verdict, judge_all

MINUTES = 2.0
MAX_MINUTES = MAX_SECONDS / 60


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a metric of B is slower, 2 if the commits cannot be compared."""
    options = parse(arguments)
    errors = Console(stderr=True)
    started = time.monotonic()
    equivalence_margin = options.equivalence_margin / 100
    try:
        a, b = extract(options.a), extract(options.b)
        verdicts = compare(a, b, options.minutes * 60, equivalence_margin, errors, options.only)
        show(a, b, verdicts, equivalence_margin, time.monotonic() - started, wide_console())
        if options.json is not None:
            options.json.write_text(json.dumps(as_json(a, b, verdicts, equivalence_margin), indent=1) + "\n")
    except (NoSuchCommit, DifferentWork, MeasurementError, OSError) as error:
        say_failure(error, errors)
        return 2
    except Exception:  # noqa: BLE001 - Python would exit with 1, which says that B is slower
        traceback.print_exc()
        return 2
    return int(any(each.outcome is Outcome.SLOWER for each in verdicts.values()))


def compare(
    a: Commit,
    b: Commit,
    seconds: float,
    equivalence_margin: float,
    console: Console,
    strategies: Sequence[str] = tuple(WORKS),
) -> dict[Key, Verdict]:
    """Measure two commits, see `take_turns`, and return the verdict on each metric of each strategy."""
    find_photographs(PHOTOGRAPHS)  # made here, once, rather than by both servers at the same time
    with progress_bar(f"{a} and {b} in turns", console) as progress:
        pairs = take_turns(a, b, seconds, progress, strategies)
    return judge_all(pairs, equivalence_margin)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare_commits",
        description="Tell whether commit B is slower or faster than commit A, in ETL alone and wall time, by strategy.",
        epilog="Exit codes: 0 no metric of B is slower, 1 at least one is, 2 the commits cannot be compared.",
    )
    parser.add_argument("a", metavar="A", help="a commit, as git names it")
    parser.add_argument("b", metavar="B", help="another commit")
    parser.add_argument(
        "--minutes", type=minutes, default=MINUTES, metavar="M", help=f"minutes of measuring (default: {MINUTES:g})"
    )
    parser.add_argument(
        "--dead-zone",
        dest="equivalence_margin",
        type=float,
        default=EQUIVALENCE_MARGIN * 100,
        metavar="PERCENT",
        help="smaller changes count as none; `make power` measures what this machine needs "
        f"(default: {EQUIVALENCE_MARGIN * 100:g})",
    )
    parser.add_argument(
        "--only",
        type=comma_separated(WORKS, "strategy"),
        default=tuple(WORKS),
        metavar="STRATEGY,STRATEGY",
        help=f"measure only some of {', '.join(WORKS)}, and give them all of the time",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result for programs")
    options = parser.parse_args(arguments)
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json: {options.json.parent} is not a folder")
    return options


def minutes(text: str) -> float:
    """Parse a number of minutes above 0, and at most 5."""
    value = float(text)
    if not 0 < value <= MAX_MINUTES:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most {MAX_MINUTES:g}, not {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
