"""Two commits side by side, for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.compare_commits.commits import Commit
from benchmarks.compare_commits.turns import Key
from benchmarks.console import print_table, say
from benchmarks.judgement import CONFIDENCE, Judgement, Verdict

STYLES = {Verdict.SLOWER: "bold red", Verdict.FASTER: "bold green", Verdict.SAME: "", Verdict.OPEN: "dim"}
NAMES = {"etl": "ETL alone", "wall": "wall"}


def show(
    a: Commit, b: Commit, judgements: Mapping[Key, Judgement], dead_zone: float, seconds: float, console: Console
) -> None:
    """Print each figure of both commits, the change, its interval and what follows."""
    table = Table(title=f"B = {b} against A = {a}")
    for name in ("strategy", "figure"):
        table.add_column(name)
    for name in ("A, ms", "B, ms", "change", "from", "to"):
        table.add_column(name, justify="right")
    table.add_column("B is")
    for (strategy, figure), each in judgements.items():
        table.add_row(
            strategy,
            NAMES[figure],
            f"{each.a * 1e3:,.2f}",
            f"{each.b * 1e3:,.2f}",
            *(percent(ratio) for ratio in (each.ratio, each.low, each.high)),
            each.verdict.value,
            style=STYLES[each.verdict],
        )
    print_table(table, console, keys=2, first=("change", "from", "to", "B is"))
    count = min(each.pairs for each in judgements.values())
    say(
        f"{count} pairs of processes for each figure, in {seconds:.0f} s; intervals of {CONFIDENCE:.2%}.\n"
        f"Changes under {dead_zone * 100:.3g}% cannot be told from noise on this machine: slower or faster is said "
        "where the whole interval is beyond that, same where it is within.",
        console,
    )
    say(summary(judgements), console, "bold")


def summary(judgements: Mapping[Key, Judgement]) -> str:
    """One line: which figures of B have changed."""
    said = []
    for verdict in (Verdict.SLOWER, Verdict.FASTER):
        found = [f"{NAMES[figure]} of {key}" for (key, figure), each in judgements.items() if each.verdict is verdict]
        if found:
            said.append(f"B is {verdict.value} in {', '.join(found)}")
    unclear = sum(each.verdict is Verdict.OPEN for each in judgements.values())
    if not said:
        said.append("no change shown")
    if unclear:
        said.append(f"{unclear} of {len(judgements)} figures are not clear: --minutes gives them more time")
    return "; ".join(said) + "."


def as_json(a: Commit, b: Commit, judgements: Mapping[Key, Judgement], dead_zone: float) -> dict[str, Any]:
    """All that `show` prints, as JSON values; an end of an interval that has none is null."""
    return {
        "a": a.sha,
        "b": b.sha,
        "dead_zone": dead_zone,
        "confidence": CONFIDENCE,
        "figures": [
            {
                "strategy": strategy,
                "figure": figure,
                "a_seconds": each.a,
                "b_seconds": each.b,
                **each.as_dict(),
            }
            for (strategy, figure), each in judgements.items()
        ],
    }


def percent(ratio: float) -> str:
    """A factor as a change: 1.05 is +5.0%."""
    return f"{(ratio - 1) * 100:+.1f}%" if 0 < ratio < math.inf else "?"
