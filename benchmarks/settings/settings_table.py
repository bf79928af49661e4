"""The verdict on each setting, as a table and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.console import print_table, say, say_failure
from benchmarks.measuring.statistics import Outcome
from benchmarks.settings.settings_turns import Key, SettingPairs, memory_ratios
from benchmarks.verdict import Verdict, judge_all

# A change must be larger than this: the default has never differed from itself by as much.
EQUIVALENCE_MARGIN = 0.02
# Confidence of one interval. The table has 50 of them. By chance, one table in 20 has a wrong interval.
CONFIDENCE = 1 - 0.05 / 50
# The words of the table: does a setting do anything, and is that good?
WORDS = {
    Outcome.FASTER: "real: faster",
    Outcome.SLOWER: "real: slower",
    Outcome.SAME: "placebo",
    Outcome.OPEN: "not clear",
}
STYLES = {Outcome.SLOWER: "red", Outcome.FASTER: "green", Outcome.SAME: "dim", Outcome.OPEN: "yellow"}


def judge_settings(measured: Mapping[Key, SettingPairs]) -> dict[Key, Verdict]:
    """Return the verdict on each setting and workload that was measured."""
    found = {key: each for key, each in measured.items() if not each.reason}
    return judge_all(found, EQUIVALENCE_MARGIN, CONFIDENCE)


def show(measured: Mapping[Key, SettingPairs], seconds: float, console: Console) -> None:
    """Print each setting, the time of an epoch over the default's, its interval, and the verdict."""
    table = Table(title="Runtime settings against the default, in turns")
    for name in ("setting", "workload", "value"):
        table.add_column(name)
    for name in ("default, ms", "with it, ms", "time", "from", "to", "memory, MB"):
        table.add_column(name, justify="right")
    table.add_column("it is")
    for (axis, workload, value), each in judge_settings(measured).items():
        table.add_row(
            axis.replace("_", " "),
            workload,
            value,
            f"{each.a * 1e3:,.1f}",
            f"{each.b * 1e3:,.1f}",
            *("?" if ratio is None else f"{ratio:.3g}" for ratio in each.ratios),
            _memory(measured[axis, workload, value]),
            WORDS[each.outcome],
            style=STYLES[each.outcome],
        )
    print_table(table, console, keys=3, first=("time", "from", "to", "it is"))
    for key, other in measured.items():
        if other.reason:
            say_failure(f"{', '.join(key)}: {other.reason}", console)
    count = max(len(each.blocks) for each in measured.values())
    say(
        f"{count} pairs of processes for each, in {seconds / 60:.0f} minutes; intervals of {CONFIDENCE:.1%}. Time is "
        f"that of an epoch over the default's; within {EQUIVALENCE_MARGIN:.0%} a setting is a placebo. Memory is "
        "the peak, above what the process had before.",
        console,
    )


def as_json(measured: Mapping[Key, SettingPairs]) -> list[dict[str, Any]]:
    """Return all that `show` prints, as JSON values; a missing end of an interval is null."""
    return [
        {
            "setting": axis,
            "workload": workload,
            "value": value,
            "default_seconds": each.a,
            "seconds": each.b,
            **each.as_dict(),
            "memory_ratios": memory_ratios(measured[axis, workload, value]),
        }
        for (axis, workload, value), each in judge_settings(measured).items()
    ]


def _memory(each: SettingPairs) -> str:
    base, other = (statistics.median(pair[arm] for pair in each.memory) / 1e6 for arm in (0, 1))
    return f"{base:,.0f} to {other:,.0f}"
