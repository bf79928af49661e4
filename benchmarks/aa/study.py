"""Comparisons of a commit with itself and its slowed copies, kept in a file: an interrupted study goes on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare_commits.turns import Key
from benchmarks.judgement import Judgement, Verdict

SAME = 0.0
SLOWED = (0.03, 0.05, 0.10)
# Compared once each, to find what the copies' clock alone takes, and what share of each figure is spent where they are
# made slower.
CLOCK, TWICE = 1e-9, 1.0


@dataclass(frozen=True)
class Comparison:
    """The commit with a copy of itself that loads slower by the share `slower`, for the `number`th time; what was found
    for each strategy and figure, and how many seconds it took.
    """

    slower: float
    number: int
    judgements: Mapping[Key, Judgement]
    seconds: float


class Study:
    """The comparisons that are wanted and those that were made, a line of JSON each in the file `path`."""

    def __init__(self, path: Path, same: int, slowed: int) -> None:
        self.path = path
        counts = {SAME: same, **dict.fromkeys(SLOWED, slowed), **dict.fromkeys((CLOCK, TWICE), min(1, slowed))}
        self._wanted = [(slower, number) for slower, count in counts.items() for number in range(count)]
        # Shuffled: a study that is stopped early has some of each, and no hour of the day is that of one of them.
        random.Random(0).shuffle(self._wanted)
        self.comparisons = list(_read(path)) if path.exists() else []

    @property
    def missing(self) -> list[tuple[float, int]]:
        """Which comparisons are to be made: by what share slower, and for which time."""
        made = {(each.slower, each.number) for each in self.comparisons}
        return [each for each in self._wanted if each not in made]

    def of(self, slower: float) -> list[Comparison]:
        """Those that are wanted and were made with a copy slower by that share."""
        return [each for each in self.comparisons if each.slower == slower and (slower, each.number) in self._wanted]

    def add(self, comparison: Comparison) -> None:
        """Keep what was found."""
        self.comparisons.append(comparison)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(_as_json(comparison)) + "\n")


def _as_json(comparison: Comparison) -> dict[str, Any]:
    figures = [
        {"strategy": strategy, "figure": figure, **asdict(each), "verdict": each.verdict.value}
        for (strategy, figure), each in comparison.judgements.items()
    ]
    return {
        "slower": comparison.slower,
        "number": comparison.number,
        "seconds": comparison.seconds,
        "figures": figures,
    }


def _read(path: Path) -> Iterator[Comparison]:
    """What the lines hold; the last may have been cut by an interruption, and is measured again."""
    lines = path.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        path.write_text("".join(lines[:-1]))
        lines.pop()
    for line in lines:
        content = json.loads(line)
        judgements = {
            (each.pop("strategy"), each.pop("figure")): Judgement(**{**each, "verdict": Verdict(each["verdict"])})
            for each in content["figures"]
        }
        yield Comparison(content["slower"], content["number"], judgements, content["seconds"])
