"""Measure runtime settings against the default: `python -m benchmarks.settings`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks.console import comma_separated
from benchmarks.settings.setting import ALLOCATORS, ALLOCATORS_HERE, AXES
from benchmarks.settings.settings_table import show
from benchmarks.settings.settings_turns import SETTING_ROUNDS, SettingRound, joined, take_turns
from benchmarks.studies.study import FOLDER, Plan, run_study, study_parser

# Fewer pairs give no interval of the confidence that `settings_table.py` asks for.
ROUNDS = 12
PAIR_SECONDS = 1.5
# Decides the order of the settings in each round.
SEED = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rounds that are missing, and print the table; return 2 if the settings cannot be compared."""
    parser = study_parser("benchmarks.settings", __doc__, rounds=ROUNDS)
    parser.add_argument(
        "--only",
        type=comma_separated(AXES, "setting"),
        default=tuple(AXES),
        metavar="NAME,...",
        help=f"measure only some of {', '.join(AXES)}",
    )
    options = parser.parse_args(arguments)
    if options.samples is None and (options.only, options.rounds) != (tuple(AXES), ROUNDS):
        parser.error("the journal of the documents has all settings, and all rounds: name another with --samples")
    if missing := [name for name in ALLOCATORS if name not in ALLOCATORS_HERE]:
        Console(stderr=True).print(f"not installed, and so not tried: {', '.join(missing)}", highlight=False)

    def measure(number: int) -> SettingRound:
        measured = take_turns(options.only, range(number, number + 1), PAIR_SECONDS, SEED)
        return SettingRound([(key, pairs.rounded()) for key, pairs in measured.items()])

    return run_study(
        SETTING_ROUNDS,
        options.samples or FOLDER / "settings.jsonl",
        Plan(
            question="Which runtime settings change how long an epoch takes?",
            arms="each setting and the default, in turns, in pairs of fresh processes",
            number=f"{options.rounds} pairs for each setting and workload",
            nominal_error="5% for all intervals together, by Bonferroni",
            stopping="when all pairs are measured",
            exclusions="settings that this system does not support",
            primary="time of an epoch over the default's",
        ),
        {"settings": options.only, "seconds": PAIR_SECONDS, "seed": SEED},
        range(options.rounds),
        measure,
        lambda results, console: show(joined(results.values()), console),
        lambda number: f"round {number}",
    )


if __name__ == "__main__":
    sys.exit(main())
