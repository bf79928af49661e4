"""A study of compare_commits: its comparisons, kept in a file, and the false alarms and detections among them."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.compare_commits.handlers import overlaps
from benchmarks.compare_commits.table import NAMES, percent
from benchmarks.compare_commits.turns import Key
from benchmarks.console import print_table, say
from benchmarks.verdict import Outcome, Verdict

SAME = 0.0
SLOWED = (0.03, 0.05, 0.10)
# Shares of two more copies, which are compared once each. `CLOCK` shows what the clock of a copy costs by itself, and
# `TWICE` which share of each metric is spent in the code that is slowed.
CLOCK, TWICE = 1e-9, 1.0
CHANGES = (Outcome.SLOWER, Outcome.FASTER)


@dataclass(frozen=True)
class Comparison:
    """One comparison of a commit with a copy of itself.

    Attributes
    ----------
    slower : float
        The share by which the copy loads more slowly; 0 is the commit itself.
    number : int
        The index of the comparison among those with this copy.
    verdicts : mapping of key to Verdict
        By strategy and metric.
    seconds : float
        Time that the comparison took.
    """

    slower: float
    number: int
    verdicts: Mapping[Key, Verdict]
    seconds: float


class Study:
    """The comparisons to make and those that were made, which are kept in a file."""

    def __init__(self, path: Path, same: int, slowed: int) -> None:
        self.path = path
        counts = {SAME: same, **dict.fromkeys(SLOWED, slowed), **dict.fromkeys((CLOCK, TWICE), min(1, slowed))}
        self._wanted = [(slower, number) for slower, count in counts.items() for number in range(count)]
        # Shuffled: a study that is stopped early has some of each, and the hour of the day favours none.
        random.Random(0).shuffle(self._wanted)
        self.comparisons = list(_read(path)) if path.exists() else []

    @property
    def missing(self) -> list[tuple[float, int]]:
        """Share and number of each comparison that has not been made."""
        made = {(each.slower, each.number) for each in self.comparisons}
        return [each for each in self._wanted if each not in made]

    def of(self, slower: float) -> list[Comparison]:
        """Return the comparisons that were made with a copy slower by that share."""
        return [each for each in self.comparisons if each.slower == slower and (slower, each.number) in self._wanted]

    def add(self, comparison: Comparison) -> None:
        """Add a comparison to the study and its file."""
        self.comparisons.append(comparison)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(_as_json(comparison)) + "\n")


def show(study: Study, equivalence_margin: float, console: Console) -> None:
    """Print how often, and of what size, a change was found in each metric of each copy; then the study as a whole."""
    print_table(_metrics(study), console, keys=2)
    print_table(_whole(study), console)
    for line in conclusions(study, equivalence_margin):
        say(line, console)


def conclusions(study: Study, equivalence_margin: float) -> list[str]:
    """Return lines that say how long a comparison took, and how far off estimates were on this machine."""
    lines = []
    same = study.of(SAME)
    if same:
        band = max(abs(each.ratio - 1) for comparison in same for each in comparison.verdicts.values())
        lines.append(
            f"No estimate of the same commit was off by more than {band:.1%}; changes under {equivalence_margin:.1%} "
            "count as none."
        )
    seconds = [each.seconds for each in study.comparisons]
    if seconds:
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
    least = clock[0].verdicts[key].ratio
    return least + slower * (twice[0].verdicts[key].ratio - least) / TWICE


def _metrics(study: Study) -> Table:
    table = Table(title="Each metric: changes found, of how many; true and median estimated size")
    table.add_column("strategy")
    table.add_column("metric")
    shares = [slower for slower in (SAME, *SLOWED) if study.of(slower)]
    for slower in shares:
        table.add_column(_title(slower), justify="right")
    for key in next(iter(study.comparisons)).verdicts if study.comparisons else ():
        table.add_row(key[0], NAMES[key[1]], *(_cell(study, key, slower) for slower in shares))
    return table


def _cell(study: Study, key: Key, slower: float) -> str:
    comparisons = study.of(slower)
    found = detections(comparisons, key, CHANGES if slower == SAME else (Outcome.SLOWER,))
    ratios = [each.verdicts[key].ratio for each in comparisons]
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
        comparisons = study.of(slower)
        if not comparisons:
            continue
        count = len(comparisons)
        wrong = detections(comparisons, None, CHANGES)
        found = detections(comparisons, None, (Outcome.SLOWER,))
        table.add_row(
            _title(slower),
            str(count),
            str(found),
            str(detections(comparisons, None, (Outcome.FASTER,))),
            f"{wrong} false alarms" if slower == SAME else f"{found} of {count} found",
        )
    return table


def _title(slower: float) -> str:
    return "the same commit" if slower == SAME else f"loading slower by {slower:.0%}"


def _as_json(comparison: Comparison) -> dict[str, Any]:
    verdicts = []
    for (strategy, metric), each in comparison.verdicts.items():
        values = asdict(each)
        del values["outcome"]
        verdicts.append({"strategy": strategy, "figure": metric, **values, "verdict": each.outcome.value})
    return {
        "slower": comparison.slower,
        "number": comparison.number,
        "seconds": comparison.seconds,
        "figures": verdicts,
    }


def _read(path: Path) -> Iterator[Comparison]:
    """Yield the comparisons in the file. One that an interruption has cut short is dropped, and made again."""
    lines = path.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        path.write_text("".join(lines[:-1]))
        lines.pop()
    for line in lines:
        content = json.loads(line)
        verdicts = {
            (each.pop("strategy"), each.pop("figure")): Verdict(outcome=Outcome(each.pop("verdict")), **each)
            for each in content["figures"]
        }
        yield Comparison(content["slower"], content["number"], verdicts, content["seconds"])
