"""The regret of what `etl.tune` chooses, against an exhaustive grid: `python -m benchmarks.studies.tuning`.

For each workload, a strategy is tuned. Then every combination of a grid of at least 24 settings is measured. Last, the
choice and the best three of the grid are measured again together, in fresh rounds: the best of many noisy measurements
would look better than it is. The regret is the time of the choice over that of the best of the three, minus 1.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import etl
from benchmarks.console import comma_separated, print_table, say
from benchmarks.datasets import find_digits, find_photographs, find_sequences, find_table
from benchmarks.journal import Kind
from benchmarks.measuring.values import JsonValues
from benchmarks.studies.study import FOLDER, Plan, run_study, study_parser

TUNE_SECONDS, BEST = 240.0, 3
# Rounds and seconds of the grid, and of the choice beside the best: the time decides how long an epoch is.
GRID_ROUNDS, GRID_SECONDS = 2, 180.0
FINAL_ROUNDS, FINAL_SECONDS = 12, 300.0
PHOTOGRAPHS, ROWS, FILES = 512, 100_000, 600
WANTED = 0.05
MODULE = "benchmarks.studies.tuning"  # also if it runs as a program
# Iterations of a loop in Python for each record of `python_dataloader`, about a millisecond.
LOOPS = 15_000


def python_records() -> Any:
    """Return a data set whose items are computed in Python, which holds the GIL."""
    from torch.utils.data import Dataset

    class Computed(Dataset):
        def __len__(self) -> int:
            return 1_024

        def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
            value = index
            for _ in range(LOOPS):
                value = (value * 31 + 7) % 65_537
            return np.full(64, value, np.float32), index % 5

    return Computed()


def python_dataloader(source: Any, batch_size: int) -> Any:
    """Return a DataLoader as most begin with it."""
    from torch.utils.data import DataLoader

    return DataLoader(source, batch_size, shuffle=True)


@dataclass(frozen=True)
class TunedWork:
    """A workload to tune: a source, or the kind of data that `_source` makes; a strategy; settings of the comparison.

    Every combination of the values of `grid` is measured. Names with a comma are settings that are varied together.
    """

    source: str
    strategy: str
    settings: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any]]

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield all configurations of the grid."""
        for values in itertools.product(*self.grid.values()):
            chosen: dict[str, Any] = {}
            for names, value in zip(self.grid, values, strict=True):
                together = names.split(",")
                chosen |= dict(zip(together, value if len(together) > 1 else (value,), strict=True))
            yield chosen


AHEAD: Mapping[str, Sequence[Any]] = {
    "compute_threads,loading_threads": ((1, 1), (2, 1), (2, 2)),
    "workers": ("thread", "process"),
    "prefetch_size": (1, 2, 4, 8),
}
DECODED = {**AHEAD, "prefetch_size": (2, 8), "decoder": ("pillow", "turbo")}
STORED = {**AHEAD, "prefetch_size": (2, 8), "format": ("npy", "hdf5")}
TORCH: Mapping[str, Sequence[Any]] = {
    "num_workers": (1, 2, 4),
    "prefetch_factor": (2, 8),
    "persistent_workers": (False, True),
    "compute_threads": (1, 2),
}
WORKLOADS = {
    "photographs-heavy": TunedWork("photographs", "async-raw", {"model": "residual", "size": 160}, DECODED),
    "photographs-light": TunedWork("photographs", "async-presaved", {"model": "lenet", "size": 64}, STORED),
    "photographs-device": TunedWork("photographs", "async-raw", {"compute": "simulated:60ms"}, DECODED),
    "digits": TunedWork("digits", "async-presaved", {"batch_size": 128}, STORED),
    "table": TunedWork("table", "async-presaved", {"batch_size": 256, "table_options": {"label": "kind"}}, STORED),
    "sequences": TunedWork("sequences", "async-raw", {}, AHEAD),
    "dataloader-python": TunedWork(
        "benchmarks.studies.tuning:python_records",
        "benchmarks.studies.tuning:python_dataloader",
        {"model": "mlp"},
        TORCH,
    ),
}


@dataclass(frozen=True)
class Regret(JsonValues):
    """The regret and the gain of tuning a workload.

    Attributes
    ----------
    combinations : int
        Configurations of the grid.
    tune_seconds, grid_seconds : float
        How long tuning took, and measuring the grid.
    chosen, best : dict
        The chosen settings, and the best of the grid.
    regret, regret_low, regret_high : float, float or None
        Time of the choice over that of the best, minus 1, and its interval.
    gain : float
        Time of the choice over that of the settings as given.
    rounds : dict of str to list of float
        Seconds of an epoch in each of the last rounds, by configuration.
    """

    workload: str
    strategy: str
    combinations: int
    tune_seconds: float
    grid_seconds: float
    chosen: Mapping[str, Any]
    best: Mapping[str, Any]
    regret: float
    regret_low: float | None
    regret_high: float | None
    gain: float
    rounds: Mapping[str, list[float]] = field(default_factory=dict)


OUTCOMES: Kind[str, Regret] = Kind("tuning", str, Regret)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune, measure the grids, print the regrets, and return 2 if the call was wrong."""
    options = parse(arguments)
    return run_study(
        OUTCOMES,
        options.samples or FOLDER / "tuning.jsonl",
        Plan(
            question="How much slower than the best configuration is the one that tuning finds?",
            arms=f"the configuration that was found, and the {BEST} fastest of the grid",
            number=f"{options.grid_rounds} rounds of the grid, {options.rounds} of the arms",
            nominal_error="5% for each interval",
            stopping="when all workloads are measured",
            exclusions="none",
            primary="regret: wall time of the configuration over the best one's, minus 1",
        ),
        {"budget": options.budget, "grid_rounds": options.grid_rounds, "rounds": options.rounds},
        options.only,
        lambda name: measure(name, WORKLOADS[name], options),
        show,
    )


def show(outcomes: Mapping[str, Regret], console: Console) -> None:
    """Print the outcomes, and how many regrets are as small as wanted."""
    print_table(table(list(outcomes.values())), console)
    within = sum(each.regret_high is not None and each.regret_high <= WANTED for each in outcomes.values())
    say(
        f"{within} of {len(outcomes)} regrets are at most {WANTED:.0%}, the upper end of the interval included.",
        console,
    )


def measure(name: str, workload: TunedWork, options: argparse.Namespace) -> Regret:
    """Tune a workload, measure its grid, and compare the choice with the best of it."""
    source = _source(workload.source)
    started = time.monotonic()
    tuning = etl.tune(source, {"tuned": workload.strategy}, budget=options.budget, tuning_cache="", **workload.settings)
    tuned, tune_seconds = tuning.strategies[0], time.monotonic() - started
    started = time.monotonic()
    grid = list(workload.combinations())
    ranked = _compare(
        source, workload, {f"{number}": each for number, each in enumerate(grid)}, options.grid_rounds, GRID_SECONDS
    )
    by_speed = sorted(ranked.strategies, key=lambda each: each.parts.wall_seconds)
    grid_seconds = time.monotonic() - started
    complete = {**tuned.given, **tuned.chosen} if not tuned.is_foreign else dict(tuned.chosen)
    best = {f"best {place}": grid[int(each.name)] for place, each in enumerate(by_speed[:BEST], 1)}
    as_given = {} if tuned.is_foreign else dict(tuned.given)
    final = _compare(source, workload, {"choice": complete, **best, "given": as_given}, options.rounds, FINAL_SECONDS)
    results = {each.name: each for each in final.strategies}
    ratios = {label: results[label].ratio for label in best}
    fastest = min(ratios, key=lambda label: ratios[label].estimate)
    ratio, given = ratios[fastest], results["given"].ratio
    return Regret(
        workload=name,
        strategy=workload.strategy,
        combinations=len(grid),
        tune_seconds=tune_seconds,
        grid_seconds=grid_seconds,
        chosen=tuned.chosen,
        best=best[fastest],
        regret=1 / ratio.estimate - 1,
        regret_low=None if ratio.high is None else 1 / ratio.high - 1,
        regret_high=None if ratio.low is None else 1 / ratio.low - 1,
        gain=math.nan if given is None else 1 / given.estimate,
        rounds={label: [each.wall_seconds for each in result.rounds] for label, result in results.items()},
    )


def _compare(
    source: str, workload: TunedWork, configured: Mapping[str, Mapping[str, Any]], rounds: int, seconds: float
) -> Any:
    """Return the report of all configurations of the workload's strategy, which takes about `seconds`."""
    return etl.compare(
        source,
        dict.fromkeys(configured, workload.strategy),
        configured=configured,
        rounds=rounds,
        budget=seconds,
        etl_alone_rounds=1,
        **workload.settings,
    )


def _source(kind: str) -> str:
    """Return the source of a workload, which is made if it is missing."""
    if kind == "photographs":
        return str(find_photographs(PHOTOGRAPHS))
    if kind == "digits":
        return str(find_digits())
    if kind == "table":
        return str(find_table(ROWS))
    return str(find_sequences(FILES)) if kind == "sequences" else kind


def table(outcomes: Sequence[Regret]) -> Table:
    """Return the outcomes as a table."""
    made = Table(title="regret of the choice against the best of an exhaustive grid")
    made.add_column("workload")
    for heading in ("grid", "tuned, s", "grid, s", "regret", "95% interval", "choice / given"):
        made.add_column(heading, justify="right")
    for each in outcomes:
        interval = "" if each.regret_high is None else f"{each.regret_low:+.1%} to {each.regret_high:+.1%}"
        made.add_row(
            f"{each.workload}: {each.strategy.rpartition(':')[2]}",
            f"{each.combinations}",
            f"{each.tune_seconds:.0f}",
            f"{each.grid_seconds:.0f}",
            f"{each.regret:+.1%}",
            interval,
            f"{each.gain:.2f}",
        )
    return made


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = study_parser("benchmarks.studies.tuning", __doc__, grid_rounds=GRID_ROUNDS, rounds=FINAL_ROUNDS)
    parser.add_argument(
        "--only", type=comma_separated(WORKLOADS, "workload"), default=tuple(WORKLOADS), metavar="NAME,NAME"
    )
    parser.add_argument("--budget", type=float, default=TUNE_SECONDS, metavar="SECONDS", help="for tuning a workload")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
