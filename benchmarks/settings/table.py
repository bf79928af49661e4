"""What each setting is worth, for people and for programs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.console import print_table, say, say_failure
from benchmarks.judgement import Judgement, Verdict, judge_all
from benchmarks.settings.turns import Key, Measured, memory_ratios

# A change must be larger than this: more than the default was ever off from itself.
DEAD_ZONE = 0.02
# Of the interval of one figure, so that of 50 in the table one in 20 would be off by chance.
CONFIDENCE = 1 - 0.05 / 50
# What a user wants to know of a setting: whether it does anything, and whether that is good.
WORDS = {
    Verdict.FASTER: "real: faster",
    Verdict.SLOWER: "real: slower",
    Verdict.SAME: "placebo",
    Verdict.OPEN: "not clear",
}
STYLES = {Verdict.SLOWER: "red", Verdict.FASTER: "green", Verdict.SAME: "dim", Verdict.OPEN: "yellow"}


def judge_settings(measured: Mapping[Key, Measured]) -> dict[Key, Judgement]:
    """For each setting and workload that was measured what follows from the times."""
    found = {key: each for key, each in measured.items() if not each.reason}
    return judge_all(found, DEAD_ZONE, CONFIDENCE)


def show(measured: Mapping[Key, Measured], seconds: float, console: Console) -> None:
    """Print each setting, the time of an epoch against the default's, its interval, and what follows."""
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
            *(f"{ratio:.3g}" if 0 < ratio < math.inf else "?" for ratio in (each.ratio, each.low, each.high)),
            _memory(measured[axis, workload, value]),
            WORDS[each.verdict],
            style=STYLES[each.verdict],
        )
    print_table(table, console, keys=3, first=("time", "from", "to", "it is"))
    for key, other in measured.items():
        if other.reason:
            say_failure(f"{', '.join(key)}: {other.reason}", console)
    count = max(len(each.blocks) for each in measured.values())
    say(
        f"{count} pairs of processes for each, in {seconds / 60:.0f} minutes; intervals of {CONFIDENCE:.1%}. Time is "
        f"that of an epoch over the default's; within {DEAD_ZONE:.0%} a setting is a placebo. Memory is the peak above "
        "what the process had before.",
        console,
    )


def as_json(measured: Mapping[Key, Measured]) -> list[dict[str, Any]]:
    """All that `show` prints, as JSON values; an end of an interval that has none is null."""
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


def _memory(each: Measured) -> str:
    base, other = (statistics.median(pair[side] for pair in each.memory) / 1e6 for side in (0, 1))
    return f"{base:,.0f} to {other:,.0f}"
