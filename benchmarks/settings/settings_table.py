"""The verdict on each setting, as a table and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from benchmarks.console import say, say_failure
from benchmarks.measuring.statistics import Outcome
from benchmarks.settings.settings_turns import Key, SettingPairs
from benchmarks.studies.study import describe_ratio, print_lines
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


def judge_settings(measured: Mapping[Key, SettingPairs]) -> dict[Key, Verdict]:
    """Return the verdict on each setting and workload that was measured."""
    found = {key: each for key, each in measured.items() if not each.reason}
    return judge_all(found, EQUIVALENCE_MARGIN, CONFIDENCE)


def show(measured: Mapping[Key, SettingPairs], seconds: float, console: Console) -> None:
    """Print each setting, the time of an epoch over the default's, its interval, and the verdict."""
    print_lines("Runtime settings against the default, in turns", lines_of(measured), console, keys=3)
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
            "memory_nbytes": [list(pair) for pair in measured[axis, workload, value].memory],
        }
        for (axis, workload, value), each in judge_settings(measured).items()
    ]


def lines_of(measured: Mapping[Key, SettingPairs]) -> list[tuple[str, ...]]:
    """Return the lines of the table."""
    lines: list[tuple[str, ...]] = [("setting", "workload", "value", "time", "memory, MB", "it is")]
    for key, each in judge_settings(measured).items():
        default, other = (statistics.median(pair[arm] for pair in measured[key].memory) / 1e6 for arm in (0, 1))
        names = key[0].replace("_", " "), *key[1:]
        time = describe_ratio(each.change, 2)
        lines.append((*names, time, f"{default:,.0f} to {other:,.0f}", WORDS[each.outcome]))
    return lines
