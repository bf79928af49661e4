"""Count how often a comparison of commits is wrong, and what it finds: `python -m benchmarks.studies.power`.

HEAD is compared with itself, and a copy whose loading takes 3% longer with a copy under the same clock. Each comparison
is a whole run of `python -m benchmarks.compare_commits`. What it would find of other changes follows from the
comparisons of HEAD with itself, whose logarithms of ratios are shifted.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from rich.console import Console

from benchmarks.compare_commits.__main__ import MINUTES, compare, minutes
from benchmarks.compare_commits.commits import ROOT, NoSuchCommit, extract
from benchmarks.compare_commits.commits_table import NAMES, percent
from benchmarks.compare_commits.commits_turns import Key
from benchmarks.compare_commits.commits_worker import overlaps
from benchmarks.console import say, say_failure
from benchmarks.journal import Kind, read_results
from benchmarks.measuring.statistics import Interval, Outcome, ratio_interval
from benchmarks.measuring.values import JsonValues
from benchmarks.studies.study import FOLDER, Plan, as_markdown, print_lines, run_study, study_parser
from benchmarks.verdict import CONFIDENCE, EQUIVALENCE_MARGIN

# Shares by which loading takes longer. The copy at `TWICE` shows which share of a metric is loading.
SAME, SLOWED, TWICE = 0.0, 0.03, 1.0
# A copy that only has the clock of a slower one.
CLOCK = 1e-9
# Changes of a metric whose power is read off the comparisons of a commit with itself.
EFFECTS = (0.02, 0.03, 0.05, 0.10)
CHANGES = (Outcome.SLOWER, Outcome.FASTER)
# The files that affect a verdict: a change of any of them begins another study.
METHOD_FILES = tuple(
    f"benchmarks/{name}"
    for name in (
        "compare_commits",
        "measuring",
        "cells.py",
        "datasets.py",
        "isolated_main.py",
        "public_names.py",
        "servers.py",
        "verdict.py",
        "workload.py",
    )
)


@dataclass(frozen=True)
class MetricRatios(JsonValues):
    """One metric of a strategy: log(B / A) of each pair of processes."""

    strategy: str
    metric: str
    log_ratios: list[float]


@dataclass(frozen=True)
class Comparison(JsonValues):
    """One comparison: all pairs of processes, and the seconds that it took."""

    found: list[MetricRatios]
    seconds: float

    @cached_property
    def changes(self) -> dict[Key, Interval]:
        """B over A, with the interval on which a verdict rests, by strategy and metric."""
        return {
            (each.strategy, each.metric): ratio_interval([math.exp(one) for one in each.log_ratios], CONFIDENCE)
            for each in self.found
        }


# Keys are the share by which the copy loads more slowly, and a number.
Keys = tuple[float, int]
COMPARISONS: Kind[Keys, Comparison] = Kind("power", Keys, Comparison)


@dataclass(frozen=True)
class Study:
    """All comparisons, by share and number."""

    comparisons: Mapping[Keys, Comparison]

    def of(self, slower: float) -> list[Comparison]:
        """Return the comparisons with a copy slower by that share."""
        return [each for (share, _), each in self.comparisons.items() if share == slower]

    @property
    def metrics(self) -> list[Key]:
        """Strategy and metric of all that is compared."""
        return list(next(iter(self.comparisons.values())).changes)

    def found(self, key: Key, slower: float, effect: float = 0.0) -> int:
        """Count the comparisons that found a metric slower, after its ratios have been shifted by `effect`."""
        return sum(shifted(each.changes[key], effect) is Outcome.SLOWER for each in self.of(slower))

    @property
    def false_alarms(self) -> int:
        """Comparisons of a commit with itself that found any metric changed."""
        return sum(any(map(is_change, each.changes.values())) for each in self.of(SAME))

    def truth(self, key: Key) -> float | None:
        """Return the true ratio of a metric of the slowed copy; None if loading is hidden behind compute."""
        twice = self.of(TWICE)
        return None if not twice or overlaps(*key) else 1 + SLOWED * (twice[0].changes[key].estimate - 1) / TWICE

    @property
    def rows(self) -> list[list[str]]:
        """The table, with a line for each metric, below its headings."""
        same, slowed = self.of(SAME), self.of(SLOWED)
        headings = ("strategy", "metric", "same commit", f"loading slower by {SLOWED:.0%}")
        lines = [[*headings, *(f"by {each:.0%}" for each in EFFECTS)]]
        for key in self.metrics:
            line = [key[0], NAMES[key[1]], "", "", *("" for _ in EFFECTS)]
            if same:
                estimates = [each.changes[key].estimate for each in same]
                changed = sum(is_change(each.changes[key]) for each in same)
                line[2] = f"{changed} of {len(same)}; {percent(min(estimates))} to {percent(max(estimates))}"
                line[4:] = [f"{self.found(key, SAME, effect) / len(same):.0%}" for effect in EFFECTS]
            if slowed:
                median = statistics.median(each.changes[key].estimate for each in slowed)
                found = f"{self.found(key, SLOWED)} of {len(slowed)}"
                line[3] = f"{found}; {percent(self.truth(key))}, {percent(median)}"
            lines.append(line)
        return lines


def is_change(change: Interval) -> bool:
    """Return True if the verdict is that a metric is slower or faster."""
    return change.outcome(EQUIVALENCE_MARGIN) in CHANGES


def shifted(change: Interval, effect: float) -> Outcome:
    """Return the verdict on a change, had B taken longer by a share of `effect`."""
    low, high = (None if each is None else each * (1 + effect) for each in (change.low, change.high))
    return Interval(change.estimate * (1 + effect), low, high, change.count).outcome(EQUIVALENCE_MARGIN)


def wanted_comparisons(same: int, slowed: int) -> list[Keys]:
    """Return the keys of all comparisons, shuffled: the hour of the day favours none."""
    counts = {SAME: same, SLOWED: slowed, TWICE: min(1, slowed)}
    wanted = [(slower, number) for slower, count in counts.items() for number in range(count)]
    random.Random(0).shuffle(wanted)
    return wanted


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the comparisons that are missing, and print what all of them found; return 2 if the call was wrong."""
    options = parse(arguments)
    errors = Console(stderr=True)
    try:
        commit = extract(options.commit)
    except NoSuchCommit as error:
        say_failure(error, errors)
        return 2

    def measure(key: Keys) -> Comparison:
        started = time.monotonic()
        slower = key[0]
        base = replace(commit, slower=CLOCK) if slower else commit
        verdicts = compare(base, replace(commit, slower=slower), options.minutes * 60, EQUIVALENCE_MARGIN, errors)
        found = [MetricRatios(*key, [round(one, 5) for one in each.log_ratios]) for key, each in verdicts.items()]
        return Comparison(found, round(time.monotonic() - started, 1))

    return run_study(
        COMPARISONS,
        options.samples or FOLDER / "power.jsonl",
        Plan(
            question="How often is a comparison of commits wrong, and which changes does it find?",
            arms=f"the commit and itself; a copy whose loading takes {SLOWED:.0%} longer and one under its clock",
            number=f"{options.same} comparisons with itself, {options.slowed} with the copy, one with a copy at 100%",
            nominal_error=f"{1 - CONFIDENCE:.3%} for each of the 8 metrics of a comparison",
            stopping="when all comparisons are made",
            exclusions="none",
            primary="comparisons of the commit with itself that find any metric changed",
        ),
        {"commit": commit.sha, "minutes": options.minutes, "method": digest_of_method()},
        wanted_comparisons(options.same, options.slowed),
        measure,
        lambda results, console: show(Study(results), console),
        lambda key: "the same commit" if key[0] == SAME else f"a copy slower by {key[0]:.0%}",
    )


def digest_of_method() -> str:
    """Return 8 hexadecimal digits that change with everything that affects a verdict."""
    digest = hashlib.sha256()
    for name in METHOD_FILES:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:8]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = study_parser("benchmarks.studies.power", __doc__, same=60, slowed=12)
    parser.add_argument("--commit", default="HEAD", help="the commit to study (default: HEAD)")
    parser.add_argument(
        "--minutes", type=minutes, default=MINUTES, metavar="M", help=f"for each comparison (default: {MINUTES:g})"
    )
    return parser.parse_args(arguments)


def show(study: Study, console: Console) -> None:
    """Print what was found of each metric, and what follows."""
    title = "Changes found, with estimates; then the share of comparisons that would find a change"
    print_lines(title, study.rows, console, keys=2)
    say(describe(study), console)


def render(path: Path) -> str:
    """Return the table of a journal, and what follows, as Markdown."""
    study = Study(read_results(path, COMPARISONS))
    return f"{as_markdown(study.rows)}\n\n{describe(study)}\n"


def sentence(path: Path) -> str:
    """Return what a journal says, in two sentences."""
    return describe(Study(read_results(path, COMPARISONS)), EFFECTS[2:]).partition(" A comparison took")[0] + "\n"


def describe(study: Study, effects: Sequence[float] = EFFECTS) -> str:
    """Return how often a commit was taken for another one, which changes are found, and how long it took."""
    from scipy import stats  # here, because every process of a comparison imports this module's package

    same, slowed = study.of(SAME), study.of(SLOWED)
    parts = []
    if same:
        most = stats.binomtest(study.false_alarms, len(same)).proportion_ci().high
        loading = [key for key in study.metrics if key[1] == "etl"]
        shares = [sorted(study.found(key, SAME, effect) / len(same) for key in loading) for effect in effects]
        found = [
            f"by {effect:.0%} in {_range(f'{each[0]:.0%}', f'{each[-1]:.0%}')}"
            for each, effect in zip(shares, effects, strict=True)
        ]
        parts += [
            f"Of {len(same)} comparisons of a commit with itself {study.false_alarms} found a change: at most "
            f"{most:.0%} do (95% interval).",
            f"Slower ETL alone would be found, {', '.join(found)}, depending on the strategy.",
        ]
    if slowed:
        counts = sorted(study.found(key, SLOWED) for key in study.metrics if key[1] == "etl")
        counted = _range(str(counts[0]), str(counts[-1]))
        parts.append(f"Of {len(slowed)} copies slowed by {SLOWED:.0%}, {counted} were found.")
    if study.comparisons:
        seconds = [each.seconds for each in study.comparisons.values()]
        parts.append(f"A comparison took {statistics.median(seconds):.0f} s.")
    return " ".join(parts)


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    sys.exit(main())
