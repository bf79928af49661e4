"""Count how often an interval of `etl compare` excludes the true ratio: `python -m benchmarks.studies.coverage SOURCE`.

It compares `raw` with `raw` under other names, again and again: the true ratio is 1. With `--delayed`, it compares a
loader with the same one that takes a tenth longer for each batch: the true ratio is 1.1. Intervals of 95% hold
together: in at most one comparison of twenty, any of them should exclude it. An interrupted study continues when it is
run again.

`--simulate` counts the same for noise from a random generator, and for other methods of making the intervals.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import etl
import presave
from benchmarks.console import print_table, say, wide_console
from benchmarks.journal import Kind, read_lines, results_in
from benchmarks.measuring.statistics import (
    CONFIDENCE,
    MIN_ROUNDS,
    USUAL_ROUNDS,
    Interval,
    paired_ratios,
    ratio_interval,
    ratio_intervals,
)
from benchmarks.measuring.values import JsonValues
from benchmarks.studies.study import FOLDER, Plan, run_study, study_parser

EQUAL = ("--strategies", "raw,a=raw,b=raw")
# Compute takes no time, so that the ratio of loading is that of an epoch.
DELAYED = (
    "--strategies",
    "plain=benchmarks.studies.coverage:plain,delayed=benchmarks.studies.coverage:delayed",
    "--compute",
    "simulated:0ms",
)
DELAYED_RATIO = 1.1
SIMULATED_TABLES = 1000


@dataclass(frozen=True)
class Run(JsonValues):
    """One comparison: the wall times of each strategy, round by round, and the seconds that it took."""

    walls: Mapping[str, list[float]]
    seconds: float

    @property
    def intervals(self) -> list[Interval]:
        """The ratios to the first strategy, with intervals if there are enough rounds."""
        walls = {name: dict(enumerate(each)) for name, each in self.walls.items()}
        return list(ratio_intervals(walls, next(iter(walls))).values())


RUNS: Kind[int, Run] = Kind("coverage", int, Run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the comparisons that are missing, and print how many were wrong; return 2 if that fails."""
    options = parse(arguments)
    if options.simulate:
        simulate(wide_console())
        return 0
    data = Path(options.source).name  # its folder is that of a machine
    compare_arguments = [*(DELAYED if options.delayed else EQUAL), "--budget", str(options.budget)]
    for name in ("rounds", "records", "batch_size", "size"):
        compare_arguments += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    truth = DELAYED_RATIO if options.delayed else 1.0
    return run_study(
        RUNS,
        options.samples or FOLDER / f"coverage{'-delayed' if options.delayed else ''}.jsonl",
        Plan(
            question="How often does an interval of a comparison exclude the true ratio?",
            arms="a loader and one that is a tenth slower" if options.delayed else "one strategy under three names",
            number=f"{options.runs} comparisons",
            nominal_error="5% for all intervals of a comparison together",
            stopping="when all comparisons are made",
            exclusions="none",
            primary="comparisons of which an interval excludes the true ratio",
        ),
        {"arguments": [data, *compare_arguments]},
        range(options.runs),
        lambda _: compare_once([options.source, *compare_arguments]),
        lambda runs, console: say(describe(list(runs.values()), truth), console),
        lambda number: f"comparison {number + 1}",
    )


def plain(source: presave.RecordSequence, pipeline: etl.Pipeline, batch_size: int) -> Iterator[etl.Batch]:
    """Load as `raw` does."""
    yield from etl.RawIterator(source, pipeline, batch_size)


def delayed(source: presave.RecordSequence, pipeline: etl.Pipeline, batch_size: int) -> Iterator[etl.Batch]:
    """Load as `plain` does, and take `DELAYED_RATIO` of its time for each batch."""
    began = time.perf_counter()
    for batch in plain(source, pipeline, batch_size):
        until = began + DELAYED_RATIO * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass
        yield batch
        began = time.perf_counter()


def compare_once(arguments: Sequence[str]) -> Run:
    """Make one comparison; raise `KeyboardInterrupt` if it was interrupted, even after whole rounds."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [sys.executable, "-m", "etl", "compare", *arguments, "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or f"etl compare ended with exit code {done.returncode}")
        report = json.loads(file.read_text())
    if report["stopped_early"]:
        raise KeyboardInterrupt
    walls = {each["name"]: [one["wall_seconds"] for one in each["rounds"]] for each in report["strategies"]}
    if len(walls) < 2:
        raise RuntimeError(" ".join(report["notes"]))
    return Run(walls, time.monotonic() - started)


def render(path: Path) -> str:
    """Return what a journal says, as a paragraph."""
    header, *lines = read_lines(path)
    truth = DELAYED_RATIO if DELAYED[1] in header["arguments"] else 1.0
    return describe(list(results_in(lines, RUNS).values()), truth) + "\n"


def describe(runs: Sequence[Run], truth: float = 1.0) -> str:
    """Return how many comparisons were wrong, the bounds of that proportion, and how wide the intervals were."""
    from scipy import stats  # here, because every process of the comparison imports this module

    tables = [each.intervals for each in runs]
    tables = [each for each in tables if each and each[0].low is not None]
    if not tables:
        return f"No interval: it takes {MIN_ROUNDS} rounds."
    wrong = sum(any(_excludes(each, truth) for each in table) for table in tables)
    bounds = stats.binomtest(wrong, len(tables)).proportion_ci(method="wilson")
    intervals = [each for table in tables for each in table]
    halves = [math.sqrt(each.width) - 1 for each in intervals]
    off = [abs(each.estimate / truth - 1) for each in intervals]
    seconds = statistics.median(each.seconds for each in runs)
    rounds = statistics.median(each.count for each in intervals)
    return (
        f"{wrong} of {len(tables)} comparisons have an interval of {CONFIDENCE:.0%} that excludes {truth:g}: "
        f"{wrong / len(tables):.1%}, between {bounds.low:.1%} and {bounds.high:.1%}.\n"
        f"Median half-width {statistics.median(halves):.1%}; median distance of the estimate from it "
        f"{statistics.median(off):.1%}, largest {max(off):.1%}; {rounds:g} rounds in {seconds:.0f} s each."
    )


def _excludes(interval: Interval, truth: float) -> bool:
    return interval.low is not None and interval.high is not None and not interval.low <= truth <= interval.high


def simulate(console: Console, tables: int = SIMULATED_TABLES) -> None:
    """Print in how many tables of equal arms all intervals hold, and their median half-width, by way of making them."""
    found = Table(title=f"{tables:,} tables of equal arms each: all intervals of 95% hold (median half-width)")
    for column in ("noise", "rivals", "rounds", *METHODS):
        found.add_column(column, justify="right")
    for noise, rivals, rounds in itertools.product(NOISES, (1, 4, 13), (6, 8, 12, 20)):
        random = np.random.default_rng(rivals * 100 + rounds)
        walls = [_equal_arms(random, noise, rivals, rounds) for _ in range(tables)]
        cells = []
        for method in METHODS.values():
            made = [method(each) for each in walls]
            held = sum(all(one.low is not None and not one.excludes_one for one in each) for each in made) / tables
            width = statistics.median(math.sqrt(one.width) - 1 for each in made for one in each)
            cells.append(f"{held:.1%} ({width:.2%})")
        found.add_row(noise, str(rivals), str(rounds), *cells)
    print_table(found, console, keys=3)


Walls = dict[int, dict[int, float]]
NOISES = ("normal", "heavy tails", "a slow arm in a tenth of the rounds")


def _equal_arms(random: np.random.Generator, noise: str, rivals: int, rounds: int) -> Walls:
    drawn = random.standard_t(3, (rounds, rivals + 1)) / 3**0.5 if noise == NOISES[1] else None
    logs = 0.02 * (random.standard_normal((rounds, rivals + 1)) if drawn is None else drawn)
    if noise == NOISES[2]:
        slow = np.flatnonzero(random.random(rounds) < 0.1)
        logs[slow, random.integers(rivals + 1, size=len(slow))] += math.log(1.3)
    return {arm: dict(enumerate(np.exp(logs[:, arm]).tolist())) for arm in range(rivals + 1)}


def _alone(walls: Walls, confidence: float = CONFIDENCE) -> list[Interval]:
    return [ratio_interval(paired_ratios(walls[each], walls[0]), confidence) for each in walls if each]


METHODS: Mapping[str, Callable[[Walls], list[Interval]]] = {
    "together (max-t)": lambda walls: list(ratio_intervals(walls, 0).values()),
    "each alone (signed-rank)": _alone,
    "Bonferroni (signed-rank)": lambda walls: _alone(walls, 1 - (1 - CONFIDENCE) / (len(walls) - 1)),
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = study_parser(
        "benchmarks.studies.coverage", __doc__, runs=100, rounds=USUAL_ROUNDS, records=160, batch_size=16, size=64
    )
    parser.add_argument("source", nargs="?", default=".", help="such as a folder of photographs")
    parser.add_argument("--simulate", action="store_true", help="simulate noise; nothing is measured")
    parser.add_argument("--delayed", action="store_true", help="one loader takes a tenth longer than the other")
    parser.add_argument("--budget", type=float, default=20.0, metavar="SECONDS", help="for each (default: 20)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
