"""The verdicts on two commits, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.compare_commits.commits import Commit
from benchmarks.compare_commits.commits_turns import Key
from benchmarks.console import print_table, say
from benchmarks.measuring.statistics import Outcome
from benchmarks.verdict import CONFIDENCE, Verdict

STYLES = {Outcome.SLOWER: "bold red", Outcome.FASTER: "bold green", Outcome.SAME: "", Outcome.OPEN: "dim"}
NAMES = {"etl": "ETL alone", "wall": "wall"}


def show(
    a: Commit, b: Commit, verdicts: Mapping[Key, Verdict], equivalence_margin: float, seconds: float, console: Console
) -> None:
    """Print each metric of both commits, the change, its interval and the verdict."""
    table = Table("strategy", "metric", title=f"B = {b} against A = {a}")
    for name in ("A, ms", "B, ms", "change", "from", "to"):
        table.add_column(name, justify="right")
    table.add_column("B is")
    for (strategy, metric), each in verdicts.items():
        table.add_row(
            strategy,
            NAMES[metric],
            f"{each.a * 1e3:,.2f}",
            f"{each.b * 1e3:,.2f}",
            *map(percent, (each.change.estimate, each.change.low, each.change.high)),
            each.outcome.value,
            style=STYLES[each.outcome],
        )
    print_table(table, console, keys=2, first=("change", "from", "to", "B is"))
    count = min(each.change.count for each in verdicts.values())
    say(
        f"{count} pairs of processes for each metric, in {seconds:.0f} s; intervals of {CONFIDENCE:.2%}.\n"
        f"Changes under {equivalence_margin * 100:.3g}% cannot be told from noise on this machine: a metric is slower "
        "or faster if its whole interval is outside this margin, and the same if all of it is inside.",
        console,
    )
    say(summary(verdicts), console, "bold")


def summary(verdicts: Mapping[Key, Verdict]) -> str:
    """Return one line with the metrics of B that have changed, and the number of those that are not clear."""
    parts = []
    for outcome in (Outcome.SLOWER, Outcome.FASTER):
        found = [f"{NAMES[metric]} of {name}" for (name, metric), each in verdicts.items() if each.outcome is outcome]
        if found:
            parts.append(f"B is {outcome.value} in {', '.join(found)}")
    unclear = sum(each.outcome is Outcome.OPEN for each in verdicts.values())
    if not parts:
        parts.append("no change shown")
    if unclear:
        parts.append(f"{unclear} of {len(verdicts)} metrics are not clear: --minutes gives them more time")
    return "; ".join(parts) + "."


def as_json(a: Commit, b: Commit, verdicts: Mapping[Key, Verdict], equivalence_margin: float) -> dict[str, Any]:
    """Return all that `show` prints, as JSON values; a missing end of an interval is null."""
    return {
        "a": a.sha,
        "b": b.sha,
        "dead_zone": equivalence_margin,
        "confidence": CONFIDENCE,
        "figures": [
            {
                "strategy": strategy,
                "figure": metric,
                "a_seconds": each.a,
                "b_seconds": each.b,
                "ratio": each.change.estimate,
                "low": each.change.low,
                "high": each.change.high,
                "pairs": each.change.count,
                "verdict": each.outcome.value,
                "log_ratios": each.log_ratios,
            }
            for (strategy, metric), each in verdicts.items()
        ],
    }


def percent(ratio: float | None) -> str:
    """Format a factor as a change: 1.05 is +5.0%."""
    return "?" if ratio is None else f"{ratio - 1:+.1%}"
