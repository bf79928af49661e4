"""Count how often a comparison of commits is wrong: `python -m benchmarks.studies.aa`.

HEAD is compared with itself and with copies that load more slowly by a known share. Each comparison is a whole run of
`python -m benchmarks.compare_commits`.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from benchmarks.compare_commits.__main__ import MINUTES, compare, minutes
from benchmarks.compare_commits.commits import ROOT, NoSuchCommit, extract
from benchmarks.compare_commits.commits_table import NAMES, percent
from benchmarks.compare_commits.commits_turns import Key
from benchmarks.compare_commits.commits_worker import overlaps
from benchmarks.console import print_table, say, say_failure
from benchmarks.journal import Kind
from benchmarks.measuring.statistics import Outcome
from benchmarks.measuring.values import JsonValues
from benchmarks.studies.study import FOLDER, Plan, run_study, study_parser
from benchmarks.verdict import EQUIVALENCE_MARGIN, Verdict

SAME = 0.0
SLOWED = (0.03, 0.05, 0.10)
# Shares of two more copies, which are compared once each. `CLOCK` shows what the clock of a copy costs by itself, and
# `TWICE` which share of each metric is spent in the code that is slowed.
CLOCK, TWICE = 1e-9, 1.0
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
        "servers.py",
        "verdict.py",
        "workload.py",
    )
)


@dataclass(frozen=True)
class MetricVerdict(JsonValues):
    """The verdict on one metric of a strategy."""

    strategy: str
    metric: str
    verdict: Verdict


@dataclass(frozen=True)
class Comparison(JsonValues):
    """One comparison of a commit with a copy of itself: its verdicts, and the seconds that it took."""

    found: list[MetricVerdict]
    seconds: float

    @property
    def verdicts(self) -> dict[Key, Verdict]:
        """The verdicts by strategy and metric."""
        return {(each.strategy, each.metric): each.verdict for each in self.found}


# Keys are the share by which the copy loads more slowly, 0 for the commit itself, and a number.
COMPARISONS: Kind[tuple[float, int], Comparison] = Kind("aa", tuple[float, int], Comparison)


@dataclass(frozen=True)
class Study:
    """All comparisons of a study, by share and number."""

    comparisons: Mapping[tuple[float, int], Comparison]

    def of(self, slower: float) -> list[Comparison]:
        """Return the comparisons with a copy slower by that share."""
        return [each for (share, _), each in self.comparisons.items() if share == slower]


def wanted_comparisons(same: int, slowed: int) -> list[tuple[float, int]]:
    """Return the keys of all comparisons, shuffled: the hour of the day favours none."""
    counts = {SAME: same, **dict.fromkeys(SLOWED, slowed), **dict.fromkeys((CLOCK, TWICE), min(1, slowed))}
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

    def measure(key: tuple[float, int]) -> Comparison:
        started = time.monotonic()
        copy = replace(commit, slower=key[0])
        verdicts = compare(commit, copy, options.minutes * 60, EQUIVALENCE_MARGIN, errors)
        found = [MetricVerdict(*metric, verdict) for metric, verdict in verdicts.items()]
        return Comparison(found, time.monotonic() - started)

    return run_study(
        COMPARISONS,
        options.samples or FOLDER / f"aa-{commit.sha[:8]}-{digest_of_method(options.minutes)}.jsonl",
        Plan(
            question="How often is a comparison of commits wrong?",
            arms="the commit against itself, and against copies whose loading is slower by a known share",
            number=f"{options.same} comparisons with itself, {options.slowed} with each copy",
            nominal_error="5% for all metrics of a comparison together",
            stopping="when all comparisons are made",
            exclusions="none",
            primary="comparisons with a verdict of a change, by metric and for any metric",
        ),
        {"commit": commit.sha, "method": digest_of_method(options.minutes)},
        wanted_comparisons(options.same, options.slowed),
        measure,
        lambda results, console: show(Study(results), EQUIVALENCE_MARGIN, console),
        lambda key: "the same commit" if key[0] == SAME else f"a copy slower by {key[0]:.0%}",
    )


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
    parser = study_parser("benchmarks.studies.aa", __doc__, same=20, slowed=10)
    parser.add_argument("--commit", default="HEAD", help="the commit to study (default: HEAD)")
    parser.add_argument(
        "--minutes", type=minutes, default=MINUTES, metavar="M", help=f"for each comparison (default: {MINUTES:g})"
    )
    return parser.parse_args(arguments)


def show(study: Study, equivalence_margin: float, console: Console) -> None:
    """Print how often, and of what size, a change was found in each metric of each copy; then the study as a whole."""
    print_table(_metrics(study), console, keys=2)
    print_table(_whole(study), console)
    for line in conclusions(study, equivalence_margin):
        say(line, console)


def conclusions(study: Study, equivalence_margin: float) -> list[str]:
    """Return lines that say how long a comparison took, and how far off estimates were on this machine."""
    lines = []
    if same := study.of(SAME):
        band = max(abs(each.change.estimate - 1) for comparison in same for each in comparison.verdicts.values())
        lines.append(
            f"No estimate of the same commit was off by more than {band:.1%}; changes under {equivalence_margin:.1%} "
            "count as none."
        )
    if seconds := [each.seconds for each in study.comparisons.values()]:
        lines.append(f"A comparison took {statistics.median(seconds):.0f} s, at most {max(seconds):.0f} s.")
    return lines


def detections(comparisons: Sequence[Comparison], key: Key | None, outcomes: Sequence[Outcome]) -> int:
    """Count the comparisons in which a metric had one of `outcomes`.

    Parameters
    ----------
    key : (str, str) or None
        Strategy and metric; None is any.
    """
    return sum(
        any(each.outcome in outcomes for name, each in comparison.verdicts.items() if key in (None, name))
        for comparison in comparisons
    )


def expected_ratio(study: Study, key: Key, slower: float) -> float | None:
    """Return the true ratio of a metric: that of a copy over that of the commit.

    It is the ratio that the copy's clock causes, plus `slower` times the share of the metric that is spent in loading,
    which the copy that is slower by 100% shows. It is None if these two copies were not measured. It is also None if
    loading is hidden behind compute, since then the metric does not grow in proportion.
    """
    if slower == SAME:
        return 1.0
    clock, twice = study.of(CLOCK), study.of(TWICE)
    if not (clock and twice) or overlaps(*key):
        return None
    least = clock[0].verdicts[key].change.estimate
    return least + slower * (twice[0].verdicts[key].change.estimate - least) / TWICE


def _metrics(study: Study) -> Table:
    table = Table(title="Each metric: changes found, of how many; true and median estimated size")
    table.add_column("strategy")
    table.add_column("metric")
    shares = [slower for slower in (SAME, *SLOWED) if study.of(slower)]
    for slower in shares:
        table.add_column(_title(slower), justify="right")
    first = next(iter(study.comparisons.values()), None)
    for key in first.verdicts if first is not None else ():
        table.add_row(key[0], NAMES[key[1]], *(_cell(study, key, slower) for slower in shares))
    return table


def _cell(study: Study, key: Key, slower: float) -> str:
    comparisons = study.of(slower)
    found = detections(comparisons, key, CHANGES if slower == SAME else (Outcome.SLOWER,))
    ratios = [each.verdicts[key].change.estimate for each in comparisons]
    if slower == SAME:
        return f"{found} of {len(comparisons)}; {percent(min(ratios))} to {percent(max(ratios))}"
    true = expected_ratio(study, key, slower)
    known = "?" if true is None else percent(true)
    return f"{found} of {len(comparisons)}; {known}, {percent(statistics.median(ratios))}"


def _whole(study: Study) -> Table:
    table = Table(title="The whole comparison")
    for name in ("B is", "comparisons", "found slower", "found faster", "so"):
        table.add_column(name)
    for slower in (SAME, *SLOWED):
        if comparisons := study.of(slower):
            found = [detections(comparisons, None, [outcome]) for outcome in CHANGES]
            wrong = f"{detections(comparisons, None, CHANGES)} false alarms"
            so = wrong if slower == SAME else f"{found[0]} of {len(comparisons)} found"
            table.add_row(_title(slower), str(len(comparisons)), *map(str, found), so)
    return table


def _title(slower: float) -> str:
    return "the same commit" if slower == SAME else f"loading slower by {slower:.0%}"


if __name__ == "__main__":
    sys.exit(main())
