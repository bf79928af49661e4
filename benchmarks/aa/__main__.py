"""Count how often compare_commits is wrong: `python -m benchmarks.aa` compares HEAD with itself and with slowed copies.

Each comparison is a whole run of `python -m benchmarks.compare_commits`. The copies load more slowly by a known share.
An interrupted study continues when it is run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.aa.study import SAME, Comparison, Study, show
from benchmarks.compare_commits.__main__ import MINUTES, compare, minutes
from benchmarks.compare_commits.commits import ROOT, Commit, NoSuchCommit, extract
from benchmarks.compare_commits.table import as_json
from benchmarks.console import say_failure, wide_console
from benchmarks.measuring.processes import MeasurementError
from benchmarks.measuring.turns import DifferentWork
from benchmarks.verdict import EQUIVALENCE_MARGIN

FOLDER = ROOT / ".asv" / "aa"
# The files that affect a verdict: a change of any of them begins another study.
METHOD_FILES = tuple(
    f"benchmarks/{name}"
    for name in (
        "compare_commits",
        "measuring",
        "cells.py",
        "datasets.py",
        "isolated_main.py",
        "servers.py",
        "verdict.py",
        "workload.py",
    )
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the comparisons that are missing, and print what all of them found; return 2 if the call was wrong."""
    options = parse(arguments)
    errors = Console(stderr=True)
    try:
        commit = extract(options.commit)
        path = FOLDER / f"{commit.sha[:8]}-{digest_of_method(options.minutes)}.jsonl"
        study = Study(path, options.same, options.slowed)
        errors.print(f"Comparisons are kept in {path}.", highlight=False, soft_wrap=True)
        make_missing(study, commit, options.minutes * 60, errors)
    except (NoSuchCommit, DifferentWork, MeasurementError) as error:
        say_failure(error, errors)
        return 2
    except KeyboardInterrupt:
        errors.print("Interrupted; the same command continues from here.", highlight=False)
        return 130
    show(study, EQUIVALENCE_MARGIN, wide_console())
    if options.json is not None:
        options.json.write_text(json.dumps(_for_programs(study, commit), indent=1) + "\n")
    return 0


def make_missing(study: Study, commit: Commit, seconds: float, console: Console) -> None:
    """Make the comparisons that are missing."""
    missing = study.missing
    for done, (slower, number) in enumerate(missing):
        took = [each.seconds for each in study.comparisons] or [seconds]
        left = (len(missing) - done) * statistics.median(took)
        name = "the same commit" if slower == SAME else f"a copy slower by {slower:.0%}"
        console.print(f"{done + 1} of {len(missing)}, {left / 60:.0f} minutes left: {name}", highlight=False)
        started = time.monotonic()
        verdicts = compare(commit, replace(commit, slower=slower), seconds, EQUIVALENCE_MARGIN, console)
        study.add(Comparison(slower, number, verdicts, time.monotonic() - started))


def digest_of_method(minutes_each: float) -> str:
    """Return 8 hexadecimal digits that change with everything that affects a verdict."""
    digest = hashlib.sha256(repr(minutes_each).encode())
    for name in METHOD_FILES:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aa", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commit", default="HEAD", help="the commit to study (default: HEAD)")
    parser.add_argument("--same", type=_count, default=20, metavar="N", help="comparisons with itself (default: 20)")
    parser.add_argument(
        "--slowed", type=_count, default=10, metavar="N", help="comparisons with each slowed copy (default: 10)"
    )
    parser.add_argument(
        "--minutes", type=minutes, default=MINUTES, metavar="M", help=f"for each comparison (default: {MINUTES:g})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result for programs")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, not {number}")
    return number


def _for_programs(study: Study, commit: Commit) -> list[dict[str, Any]]:
    return [
        {"slower": each.slower, "seconds": each.seconds, **as_json(commit, commit, each.verdicts, EQUIVALENCE_MARGIN)}
        for each in study.comparisons
    ]


if __name__ == "__main__":
    sys.exit(main())
