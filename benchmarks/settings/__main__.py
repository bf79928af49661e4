"""Measure runtime settings against the default: `python -m benchmarks.settings`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.console import comma_separated, progress_bar, say_failure, wide_console
from benchmarks.measuring.processes import MeasurementError
from benchmarks.measuring.same_work import DifferentWork
from benchmarks.settings.setting import ALLOCATORS, ALLOCATORS_HERE, AXES
from benchmarks.settings.settings_table import as_json, show
from benchmarks.settings.settings_turns import take_turns
from benchmarks.studies.study import Plan, describe_environment

# Fewer pairs give no interval of the confidence that `settings_table.py` asks for.
ROUNDS = 12
PAIR_SECONDS = 1.5
PLAN = Plan(
    question="Which runtime settings change how long an epoch takes?",
    arms="each setting and the default, in turns, in pairs of fresh processes",
    number=f"{ROUNDS} pairs for each setting and workload",
    nominal_error="5% for all intervals together, by Bonferroni",
    stopping="when all pairs are measured",
    exclusions="settings that this system does not support",
    primary="time of an epoch over the default's",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if the settings cannot be compared."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.settings", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help=f"pairs of processes (default: {ROUNDS})"
    )
    parser.add_argument(
        "--only",
        type=comma_separated(AXES, "setting"),
        default=tuple(AXES),
        metavar="NAME,...",
        help=f"measure only some of {', '.join(AXES)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result for programs")
    options = parser.parse_args(arguments)
    errors = Console(stderr=True)
    if missing := [name for name in ALLOCATORS if name not in ALLOCATORS_HERE]:
        errors.print(f"not installed, and so not tried: {', '.join(missing)}", highlight=False)
    started = time.monotonic()
    try:
        with progress_bar("Settings in turns", errors) as progress:
            measured = take_turns(options.only, options.rounds, PAIR_SECONDS, progress)
    except (DifferentWork, MeasurementError) as error:
        say_failure(error, errors)
        return 1
    show(measured, time.monotonic() - started, wide_console())
    if options.json is not None:
        found = {"plan": PLAN.to_json(), "environment": describe_environment(), "settings": as_json(measured)}
        options.json.write_text(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
