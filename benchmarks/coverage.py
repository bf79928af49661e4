"""How often `etl compare` finds a difference where there is none: `python -m benchmarks.coverage SOURCE`.

It compares `raw` with `raw` under another name, again and again. Of intervals of 95% at most one in twenty may exclude
a ratio of 1. An interrupted study goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.console import say_failure, wide_console
from etl.comparison import MeasurementError, Settings, compare
from etl.measuring.statistics import CONFIDENCE, MIN_ROUNDS, Interval
from etl.measuring.values import JsonValues, to_json

FOLDER = Path(__file__).parents[1] / ".asv" / "coverage"
# Of the normal distribution, for 95%.
DEVIATIONS = 1.96


@dataclass(frozen=True)
class Run(JsonValues):
    """One comparison: its interval, and the seconds that it took."""

    interval: Interval
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the comparisons that are missing, and print how many were wrong; 2 if the call was wrong."""
    options = parse(arguments)
    errors = Console(stderr=True)
    path = options.samples or FOLDER / f"{Path(options.source).name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    errors.print(f"Comparisons are kept in {path}.", highlight=False, soft_wrap=True)
    settings = Settings(
        options.source,
        strategies=("raw", "again=raw"),
        rounds=options.rounds,
        records=options.records,
        batch_size=options.batch_size,
        size=options.size,
        budget_seconds=options.budget,
    )
    try:
        while len(runs := read(path)) < options.runs:
            took = statistics.median(each.seconds for each in runs) if runs else options.budget
            left = (options.runs - len(runs)) * took / 60
            errors.print(f"{len(runs) + 1} of {options.runs}, {left:.0f} minutes left", highlight=False)
            keep(path, [*runs, compare_once(settings)])
    except (ValueError, MeasurementError) as error:
        say_failure(error, errors)
        return 2
    except KeyboardInterrupt:
        errors.print("Interrupted; the same command goes on from here.", highlight=False)
        return 130
    wide_console().print(describe(runs), highlight=False, soft_wrap=True)
    return 0


def compare_once(settings: Settings) -> Run:
    """Return what one comparison of a strategy with itself found."""
    started = time.monotonic()
    report = compare(settings)
    (interval,) = (each.ratio for each in report.strategies if each.ratio is not None)
    return Run(interval, time.monotonic() - started)


def read(path: Path) -> list[Run]:
    """Return the runs that were made before."""
    return [Run.from_json(each) for each in json.loads(path.read_text())] if path.exists() else []


def keep(path: Path, runs: Sequence[Run]) -> None:
    """Write `runs` in place of what is there, which stays if this is interrupted."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(to_json(runs), indent=1) + "\n")
    unfinished.replace(path)


def describe(runs: Sequence[Run]) -> str:
    """Return how many intervals were wrong, between which bounds that proportion is, and how wide they were."""
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
        f"{statistics.median(off):.1%}, largest {max(off):.1%}; of each {rounds:g} rounds in {seconds:.0f} s."
    )


def wilson(wrong: int, count: int) -> tuple[float, float]:
    """Return the interval of 95% of a proportion, by Wilson (1927), doi:10.1080/01621459.1927.10502953."""
    share, squared = wrong / count, DEVIATIONS**2
    centre = share + squared / (2 * count)
    half = DEVIATIONS * math.sqrt(share * (1 - share) / count + squared / (4 * count**2))
    return max(0.0, (centre - half) / (1 + squared / count)), min(1.0, (centre + half) / (1 + squared / count))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coverage", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("source", help="such as a folder of photographs")
    parser.add_argument("--runs", type=int, default=100, metavar="N", help="default: 100")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, metavar="N", help=f"of each (default: {MIN_ROUNDS})")
    parser.add_argument("--records", type=int, default=160, metavar="N", help="default: 160")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="default: 16")
    parser.add_argument("--size", type=int, default=64, metavar="PIXELS", help="default: 64")
    parser.add_argument("--budget", type=float, default=20.0, metavar="SECONDS", help="decides how long it profiles")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="where comparisons are kept (default: below .asv)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
