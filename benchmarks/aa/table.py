"""What a study found: false alarms, detections, and how far estimates were off."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.aa.study import CLOCK, SAME, SLOWED, TWICE, Comparison, Study
from benchmarks.compare_commits.table import NAMES, percent
from benchmarks.compare_commits.turns import Key
from benchmarks.compare_commits.work import overlaps
from benchmarks.console import print_table, say
from benchmarks.judgement import Verdict

CHANGES = (Verdict.SLOWER, Verdict.FASTER)


def show(study: Study, dead_zone: float, console: Console) -> None:
    """Print, for each copy and figure, how often a change was said and of what size; then the study as a whole."""
    print_table(_figures(study), console, keys=2)
    print_table(_whole(study), console)
    for line in conclusions(study, dead_zone):
        say(line, console)


def conclusions(study: Study, dead_zone: float) -> list[str]:
    """In words: how long a comparison took, and whether the dead zone is wide enough for this machine."""
    lines = []
    same = study.of(SAME)
    if same:
        band = max(abs(each.ratio - 1) for comparison in same for each in comparison.judgements.values())
        lines.append(
            f"Of the same commit no estimate was off by more than {band:.1%}; changes under {dead_zone:.1%} are not "
            "said to be changes."
        )
    seconds = [each.seconds for each in study.comparisons]
    if seconds:
        lines.append(f"A comparison took {statistics.median(seconds):.0f} s, at most {max(seconds):.0f} s.")
    return lines


def detections(comparisons: Sequence[Comparison], key: Key | None, verdicts: Sequence[Verdict]) -> int:
    """In how many comparisons one of `verdicts` was said of the figure `key`, or of any."""
    return sum(
        any(each.verdict in verdicts for name, each in comparison.judgements.items() if key in (None, name))
        for comparison in comparisons
    )


def expected_ratio(study: Study, key: Key, slower: float) -> float | None:
    """What a figure of a copy should be of that of the commit: what the copy's clock makes it, and `slower` times the
    share that the copy slower by 100% shows to be spent in loading. None where these were not measured, and where
    loading is hidden behind compute, which does not grow in proportion.
    """
    if slower == SAME:
        return 1.0
    clock, twice = study.of(CLOCK), study.of(TWICE)
    if not (clock and twice) or overlaps(*key):
        return None
    least = clock[0].judgements[key].ratio
    return least + slower * (twice[0].judgements[key].ratio - least) / TWICE


def _figures(study: Study) -> Table:
    table = Table(title="Each figure: changes said, of how many; true and median estimated size")
    table.add_column("strategy")
    table.add_column("figure")
    shares = [slower for slower in (SAME, *SLOWED) if study.of(slower)]
    for slower in shares:
        table.add_column(_title(slower), justify="right")
    for key in next(iter(study.comparisons)).judgements if study.comparisons else ():
        table.add_row(key[0], NAMES[key[1]], *(_cell(study, key, slower) for slower in shares))
    return table


def _cell(study: Study, key: Key, slower: float) -> str:
    comparisons = study.of(slower)
    found = detections(comparisons, key, CHANGES if slower == SAME else (Verdict.SLOWER,))
    ratios = [each.judgements[key].ratio for each in comparisons]
    if slower == SAME:
        return f"{found} of {len(comparisons)}; {percent(min(ratios))} to {percent(max(ratios))}"
    true = expected_ratio(study, key, slower)
    known = "?" if true is None else percent(true)
    return f"{found} of {len(comparisons)}; {known}, {percent(statistics.median(ratios))}"


def _whole(study: Study) -> Table:
    table = Table(title="The whole comparison")
    for name in ("B is", "comparisons", "said slower", "said faster", "so"):
        table.add_column(name)
    for slower in (SAME, *SLOWED):
        comparisons = study.of(slower)
        if not comparisons:
            continue
        count = len(comparisons)
        wrong = detections(comparisons, None, CHANGES)
        found = detections(comparisons, None, (Verdict.SLOWER,))
        table.add_row(
            _title(slower),
            str(count),
            str(found),
            str(detections(comparisons, None, (Verdict.FASTER,))),
            f"{wrong} false alarms" if slower == SAME else f"{found} of {count} found",
        )
    return table


def _title(slower: float) -> str:
    return "the same commit" if slower == SAME else f"loading slower by {slower:.0%}"
