"""The verdict on each setting, as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from benchmarks.console import say, say_failure
from benchmarks.journal import read_results
from benchmarks.measuring.statistics import Outcome
from benchmarks.settings.settings_turns import SETTING_ROUNDS, Key, SettingPairs, joined
from benchmarks.studies.study import as_markdown, describe_ratio, print_lines
from benchmarks.verdict import Verdict, judge_all

# A change must be larger than this: the default has never been shown to differ from itself by as much.
EQUIVALENCE_MARGIN = 0.02
# Confidence of one interval. The table has 50 of them. By chance, one table in 20 has a wrong interval.
CONFIDENCE = 1 - 0.05 / 50
# The words of the tables.
WORDS = {Outcome.FASTER: "faster", Outcome.SLOWER: "slower", Outcome.SAME: "a placebo", Outcome.OPEN: "not clear"}


def judge_settings(measured: Mapping[Key, SettingPairs]) -> dict[Key, Verdict]:
    """Return the verdict on each setting and workload that was measured."""
    found = {key: each for key, each in measured.items() if not each.reason}
    return judge_all(found, EQUIVALENCE_MARGIN, CONFIDENCE)


def render(path: Path) -> str:
    """Return what the study's journal says: a Markdown table for each axis, with a column for each workload."""
    measured = joined(read_results(path, SETTING_ROUNDS).values())
    cells = {key: "not supported" if each.missing else "failed" for key, each in measured.items()}
    for key, each in judge_settings(measured).items():
        cells[key] = f"{describe_ratio(each.change, 2)}, {WORDS[each.outcome]}"
    parts = [_explained(measured)]
    for axis in dict.fromkeys(axis for axis, _, _ in measured):
        workloads, values = (dict.fromkeys(key[place] for key in measured if key[0] == axis) for place in (1, 2))
        rows = [[f"`{value}`", *(cells[axis, each, value] for each in workloads)] for value in values]
        parts.append(as_markdown([[axis.replace("_", " "), *workloads], *rows]))
    return "\n\n".join(parts) + "\n"


def show(measured: Mapping[Key, SettingPairs], console: Console) -> None:
    """Print each setting, the time of an epoch over the default's, its interval, and the verdict."""
    print_lines("Runtime settings against the default, in turns", lines_of(measured), console, keys=3)
    for key, other in measured.items():
        if other.reason:
            say_failure(f"{', '.join(key)}: {other.reason}", console)
    say(f"{_explained(measured)} Memory is the peak, above what the process had before.", console)


def lines_of(measured: Mapping[Key, SettingPairs]) -> list[tuple[str, ...]]:
    """Return the lines of the table."""
    lines: list[tuple[str, ...]] = [("setting", "workload", "value", "time", "memory, MB", "it is")]
    for key, each in judge_settings(measured).items():
        default, other = (statistics.median(pair[arm] for pair in measured[key].memory) / 1e6 for arm in (0, 1))
        names = key[0].replace("_", " "), *key[1:]
        time = describe_ratio(each.change, 2)
        lines.append((*names, time, f"{default:,.0f} to {other:,.0f}", WORDS[each.outcome]))
    return lines


def _explained(measured: Mapping[Key, SettingPairs]) -> str:
    count = max((len(each.blocks) for each in measured.values()), default=0)
    return (
        f"{count} pairs of processes for each; intervals of {CONFIDENCE:.1%}. Time is that of an epoch over the "
        f"default's; within {EQUIVALENCE_MARGIN:.0%} a setting is a placebo."
    )
