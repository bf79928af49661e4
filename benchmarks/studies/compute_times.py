"""Compare loaders beside devices of several speeds: `python -m benchmarks.studies.compute_times PHOTOGRAPHS`.

How much slower decoding in every epoch looks is decided by how long compute takes, which is simulated here.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.journal import Kind, read_results
from benchmarks.measuring.statistics import USUAL_ROUNDS
from benchmarks.studies.coverage import Run, compare_once
from benchmarks.studies.study import FOLDER, Plan, as_markdown, describe_ratio, print_lines, run_study, study_parser

# Milliseconds that the device takes for a batch, and the decoder.
CASES = ((1, "pillow"), (1, "turbo"), (5, "pillow"), (20, "pillow"), (80, "pillow"))
STRATEGIES = ("presaved", "raw", "async-raw")
RUNS: Kind[tuple[int, str], Run] = Kind("compute_times", tuple[int, str], Run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the comparisons that are missing, and print the table; return 2 if that fails."""
    parser = study_parser("benchmarks.studies.compute_times", __doc__, rounds=USUAL_ROUNDS)
    parser.add_argument("source", metavar="PHOTOGRAPHS", help="such as the folder that `etl dataset photos` makes")
    options = parser.parse_args(arguments)
    settings = ["--strategies", ",".join(STRATEGIES), "--rounds", str(options.rounds)]
    return run_study(
        RUNS,
        options.samples or FOLDER / "compute-times.jsonl",
        Plan(
            question="How much slower is decoding in every epoch, beside devices of several speeds?",
            arms=", ".join(STRATEGIES),
            number=f"{len(CASES)} comparisons of {options.rounds} rounds",
            nominal_error="5% for all intervals of a comparison together",
            stopping="when all comparisons are made",
            exclusions="none",
            primary=f"wall time of an epoch over that of {STRATEGIES[0]}",
        ),
        {"arguments": settings},
        CASES,
        lambda case: compare_once(
            [options.source, *settings, "--compute", f"simulated:{case[0]}ms", "--decoder", case[1]]
        ),
        lambda runs, console: print_lines("Seconds of an epoch", lines_of(runs), console, keys=2),
        lambda case: f"{case[0]} ms for a batch, decoder {case[1]}",
    )


def render(path: Path) -> str:
    """Return what a journal says, as a Markdown table."""
    return as_markdown(lines_of(read_results(path, RUNS))) + "\n"


def lines_of(runs: Mapping[tuple[int, str], Run]) -> list[tuple[str, ...]]:
    """Return the lines of the table: seconds of an epoch, and ratios."""
    base, *others = STRATEGIES
    lines = [("compute for a batch", "decoder", *STRATEGIES, *(f"{each} / {base}" for each in others))]
    for (milliseconds, decoder), run in runs.items():
        seconds = [f"{statistics.fmean(run.walls[name]):.3g} s" for name in STRATEGIES]
        lines.append((f"{milliseconds} ms", decoder, *seconds, *(describe_ratio(each, 2) for each in run.intervals)))
    return lines


if __name__ == "__main__":
    sys.exit(main())
