"""Count how often `etl compare` finds a difference between equal strategies: `python -m benchmarks.coverage SOURCE`.

It compares `raw` with `raw` under another name, again and again. At most one in twenty intervals of 95% should exclude
a ratio of 1. An interrupted study continues when it is run again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.console import say_failure, wide_console
from benchmarks.measuring.statistics import CONFIDENCE, MIN_ROUNDS, Interval
from benchmarks.measuring.values import JsonValues

FOLDER = Path(__file__).parents[1] / ".asv" / "coverage"
# A normal distribution has 95% of its mass within this many standard deviations of its mean.
DEVIATIONS = 1.96


class StudyError(Exception):
    """A comparison could not be made, or does not belong to the study."""


@dataclass(frozen=True)
class Run(JsonValues):
    """One comparison: its interval, and the seconds that it took."""

    interval: Interval
    seconds: float


@dataclass(frozen=True)
class Study(JsonValues):
    """The arguments of `etl compare`, and its runs."""

    arguments: list[str]
    runs: list[Run]


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the comparisons that are missing, and print how many were wrong; return 2 if that fails."""
    options = parse(arguments)
    errors = Console(stderr=True)
    path = options.samples or FOLDER / f"{Path(options.source).name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    errors.print(f"Comparisons are kept in {path}.", highlight=False, soft_wrap=True)
    compare_arguments = [str(Path(options.source).absolute()), "--strategies", "raw,again=raw"]
    for name in ("rounds", "records", "batch_size", "size", "budget"):
        compare_arguments += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    try:
        study = read(path, compare_arguments)
        while len(study.runs) < options.runs:
            took = statistics.median(each.seconds for each in study.runs) if study.runs else options.budget
            left = (options.runs - len(study.runs)) * took / 60
            errors.print(f"{len(study.runs) + 1} of {options.runs}, {left:.0f} minutes left", highlight=False)
            study = Study(compare_arguments, [*study.runs, compare_once(compare_arguments)])
            keep(path, study)
    except StudyError as error:
        say_failure(error, errors)
        return 2
    except KeyboardInterrupt:
        errors.print("Interrupted; the same command continues from here.", highlight=False)
        return 130
    wide_console().print(describe(study.runs), highlight=False, soft_wrap=True)
    return 0


def compare_once(arguments: Sequence[str]) -> Run:
    """Compare a strategy with itself, once.

    Raises
    ------
    StudyError
        If the comparison fails.
    KeyboardInterrupt
        If it was interrupted, even after whole rounds.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [sys.executable, "-m", "etl", "compare", *arguments, "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StudyError(done.stderr.strip() or f"etl compare ended with exit code {done.returncode}")
        report = json.loads(file.read_text())
    if report["stopped_early"]:
        raise KeyboardInterrupt
    ratios = [each["ratio"] for each in report["strategies"] if each["ratio"] is not None]
    if not ratios:
        raise StudyError(" ".join(report["notes"]))
    return Run(Interval(**ratios[0]), time.monotonic() - started)


def read(path: Path, arguments: list[str]) -> Study:
    """Read the study that was begun with these arguments, or begin a new one.

    Raises
    ------
    StudyError
        If `path` holds something else.
    """
    if not path.exists():
        return Study(arguments, [])
    try:
        study = Study.from_json(json.loads(path.read_text()))
    except (ValueError, TypeError, AttributeError) as error:
        raise StudyError(f"{path} holds no study; name another file") from error
    if study.arguments != arguments:
        raise StudyError(f"{path} holds comparisons by etl compare {' '.join(study.arguments)}; name another file")
    return study


def keep(path: Path, study: Study) -> None:
    """Replace the study in the file `path`; an interruption leaves the old one."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(study.to_json(), indent=1) + "\n")
    unfinished.replace(path)


def describe(runs: Sequence[Run]) -> str:
    """Return how many intervals were wrong, the bounds of that proportion, and how wide the intervals were."""
    intervals = [each.interval for each in runs if each.interval.low is not None]
    if not intervals:
        return f"No interval: it takes {MIN_ROUNDS} rounds."
    wrong = sum(each.excludes_one for each in intervals)
    low, high = wilson(wrong, len(intervals))
    widths = [each.width - 1 for each in intervals]
    off = [abs(each.estimate - 1) for each in intervals]
    seconds, rounds = (
        statistics.median(each) for each in zip(*((run.seconds, run.interval.count) for run in runs), strict=True)
    )
    return (
        f"{wrong} of {len(intervals)} intervals of {CONFIDENCE:.0%} exclude 1: {wrong / len(intervals):.1%}, between "
        f"{low:.1%} and {high:.1%}.\n"
        f"Median width {statistics.median(widths):.1%}; median distance of the estimate from 1 "
        f"{statistics.median(off):.1%}, largest {max(off):.1%}; {rounds:g} rounds in {seconds:.0f} s each."
    )


def wilson(wrong: int, count: int) -> tuple[float, float]:
    """Return the 95% interval of a proportion, by Wilson (1927), doi:10.1080/01621459.1927.10502953."""
    share, squared = wrong / count, DEVIATIONS**2
    centre = share + squared / (2 * count)
    half = DEVIATIONS * math.sqrt(share * (1 - share) / count + squared / (4 * count**2))
    return max(0.0, (centre - half) / (1 + squared / count)), min(1.0, (centre + half) / (1 + squared / count))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("source", help="such as a folder of photographs")
    parser.add_argument("--runs", type=int, default=100, metavar="N", help="default: 100")
    parser.add_argument(
        "--rounds", type=int, default=MIN_ROUNDS, metavar="N", help=f"rounds of each (default: {MIN_ROUNDS})"
    )
    parser.add_argument("--records", type=int, default=160, metavar="N", help="default: 160")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="default: 16")
    parser.add_argument("--size", type=int, default=64, metavar="PIXELS", help="default: 64")
    parser.add_argument(
        "--budget",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="time for each, which decides how long it profiles (default: 20)",
    )
    parser.add_argument("--samples", type=Path, metavar="FILE", help="the file of comparisons (default: below .asv)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
