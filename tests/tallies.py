"""What tests/torture tried, how often, and what came of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

# Of a test's report, which xdist carries from process to process: triples of what was tried, outcome and times. In
# docs/results.md either ends at its first comma.
PROPERTY = "tally"


def show_tallies(reporter: pytest.TerminalReporter, path: Path | None) -> None:
    """Print the table of all tests that tallied, and write it to `path` as JSON."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for report in (each for reports in reporter.stats.values() for each in reports):
        for name, value in getattr(report, "user_properties", []):
            if name == PROPERTY and report.when == "teardown":
                for what, outcome, times in value:
                    outcomes[what][outcome] += times
    if not outcomes:
        return
    reporter.section("what was tried, and what came of it")
    for what, counts in sorted(outcomes.items()):
        said = ", ".join(f"{times:,} {outcome}" for outcome, times in counts.most_common())
        reporter.line(f"{what}: {counts.total():,} times; {said}")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(outcomes, indent=1, sort_keys=True) + "\n")
