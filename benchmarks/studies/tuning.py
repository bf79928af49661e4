"""The regret of what `etl.tune` chooses, against an exhaustive grid: `python -m benchmarks.studies.tuning`.

For each workload, a strategy is tuned for four minutes. Then its choice, the given settings and every combination of a
grid of at least 24 settings are measured in rounds; later phases keep the 8 fastest, and the 3 fastest. The even rounds
alone decide which is the best of the grid, and the odd ones alone how much slower the choice is: the best of many noisy
measurements looks better than it is in these. The regret is the time of the choice over that of the best, minus 1.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import etl
from benchmarks.console import comma_separated, print_table, say
from benchmarks.datasets import find_digits, find_photographs, find_sequences, find_table
from benchmarks.journal import Kind, read_lines, read_results
from benchmarks.measuring.statistics import Interval, ratio_interval
from benchmarks.measuring.values import JsonValues
from benchmarks.studies.study import FOLDER, Plan, as_markdown, run_study, study_parser

# A workload takes half an hour: tuning, and six phases of rounds, which are taken so many at a time.
TUNE_SECONDS, PHASE_SECONDS, ROUNDS = 240.0, 260.0, 4
ALL_RECORDS = 10**9
PHOTOGRAPHS, ROWS, FILES = 512, 100_000, 600
WANTED = 0.05
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
# Besides, the values that differ most of what tuning may choose.
DECODED = {**AHEAD, "prefetch_size": (2, 8), "decoder": ("turbo", "turbo-scaled")}
STORED_PIXELS = {**AHEAD, "prefetch_size": (2, 8), "stage": ("resize", "normalise")}
STORED_DIGITS = {**STORED_PIXELS, "stage": ("read", "normalise")}
STORED_ROWS = {**AHEAD, "prefetch_size": (2, 8), "format": ("npy", "hdf5")}
TORCH: Mapping[str, Sequence[Any]] = {
    "num_workers": (1, 2, 4),
    "prefetch_factor": (2, 8),
    "persistent_workers": (False, True),
    "compute_threads": (1, 2),
}
WORKLOADS = {
    "photographs-heavy": TunedWork("photographs", "async-raw", {"model": "residual", "size": 160}, DECODED),
    "photographs-light": TunedWork("photographs", "async-presaved", {"model": "lenet", "size": 64}, STORED_PIXELS),
    "photographs-device": TunedWork("photographs", "async-raw", {"compute": "simulated:60ms"}, DECODED),
    "digits": TunedWork("digits", "async-presaved", {"batch_size": 128}, STORED_DIGITS),
    "table": TunedWork("table", "async-presaved", {"batch_size": 256, "table_options": {"label": "kind"}}, STORED_ROWS),
    "sequences": TunedWork("sequences", "async-raw", {}, AHEAD),
    "dataloader-python": TunedWork(
        "benchmarks.studies.tuning:python_records",
        "benchmarks.studies.tuning:python_dataloader",
        {"model": "mlp"},
        TORCH,
    ),
}


# A workload and a phase: 0 tunes, and each further one takes rounds of `KEPT[phase]` configurations of the grid.
Key = tuple[str, int]
KEPT = (0, None, 8, 3, 3, 3, 3)


@dataclass(frozen=True)
class Phase(JsonValues):
    """The result of a phase of a workload.

    Attributes
    ----------
    settings : dict of str to dict
        All settings of the "choice", and those "given"; empty after the first phase.
    rounds : list of dict of str to float
        Seconds of an epoch in each round, by arm: "choice", "given", or a place in the grid.
    """

    seconds: float
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rounds: list[Mapping[str, float]] = field(default_factory=list)


PHASES: Kind[Key, Phase] = Kind("tuning", tuple[str, int], Phase)


@dataclass(frozen=True)
class Regret:
    """The regret and the gain of tuning a workload, and the minutes of all of its phases.

    `best` are the settings of the grid that were the fastest in the even rounds. `ratio` and `gain` are the time of the
    choice over that of the best, and of the settings as given, in the odd rounds.
    """

    workload: str
    minutes: float
    chosen: Mapping[str, Any]
    best: Mapping[str, Any]
    ratio: Interval
    gain: Interval

    @classmethod
    def of(cls, name: str, phases: Sequence[Phase]) -> Regret:
        """Return the regret in all phases of a workload."""
        odd = [each for phase in phases for each in phase.rounds[1::2]]
        best = _fastest(phases, 1)[0]
        return cls(
            workload=name,
            minutes=sum(each.seconds for each in phases) / 60,
            chosen=phases[0].settings["choice"],
            best=list(WORKLOADS[name].combinations())[int(best)],
            ratio=_ratio(odd, "choice", best),
            gain=_ratio(odd, "choice", "given"),
        )

    @property
    def is_within(self) -> bool:
        """True if the interval of the regret includes 0 or ends below `WANTED`."""
        low, high = self.ratio.low, self.ratio.high
        return low is not None and high is not None and (low <= 1 <= high or high < 1 + WANTED)

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of its row, one for each of `HEADINGS`."""
        low, high = self.ratio.low, self.ratio.high
        return (
            self.workload,
            WORKLOADS[self.workload].strategy.rpartition(":")[2],
            f"{self.minutes:.0f}",
            f"{self.ratio.count}",
            f"{self.ratio.estimate - 1:+.1%}",
            f"{low - 1:+.1%} to {high - 1:+.1%}" if low is not None and high is not None else "",
            f"{(high - low) / 2:.1%}" if low is not None and high is not None else "",
            f"{self.gain.estimate:.2f}",
            _words(self.chosen),
            _words(self.best),
        )


HEADINGS = ("workload", "strategy", "min", "rounds", "regret", "95% interval", "half-width", "gain", "choice", "best")


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune, measure the grids, print the regrets, and return 2 if the call was wrong."""
    options = parse(arguments)
    path = options.samples or FOLDER / "tuning.jsonl"
    return run_study(
        PHASES,
        path,
        Plan(
            question="How much slower than the best configuration is the one that tuning finds?",
            arms="the configuration that was found, the given one, and those of a grid: in later phases its fastest",
            number=f"calls of {options.rounds} rounds, as many as there is time for in {len(KEPT) - 1} phases",
            nominal_error="5% for each interval",
            stopping=f"tuning ends after {options.budget:g} s, and each further phase after {options.seconds:g} s",
            exclusions="none",
            primary="regret in the odd rounds: wall time over that of the fastest in the even rounds, minus 1",
        ),
        {"budget": options.budget, "seconds": options.seconds, "rounds": options.rounds},
        [(name, phase) for name in options.only for phase in range(len(KEPT))],
        lambda key: measure(key, _phases(path, key[0]), options),
        lambda results, console: show([_regret(results, name) for name in options.only], console),
        lambda key: f"{key[0]}, phase {key[1]}",
    )


def render(path: Path) -> str:
    """Return the table of the workloads that are complete in a journal, and at which commits, as Markdown."""
    results = read_results(path, PHASES)
    complete = [name for name in WORKLOADS if all((name, phase) in results for phase in range(len(KEPT)))]
    table = as_markdown([HEADINGS, *(_regret(results, name).cells for name in complete)])
    return f"{table}\n\n{describe_commits(path, complete)}\n"


def describe_commits(path: Path, names: Sequence[str]) -> str:
    """Return at which commits these workloads of a journal were measured: each is of the search of its commit."""
    commit, found = "unknown", dict[str, list[str]]()
    for line in read_lines(path):
        if "environment" in line:
            commit = line["environment"]["commit"]
        elif "key" in line and line["key"][0] in names:
            found.setdefault(commit, []).append(line["key"][0])
    measured = (f"commit {at}: {', '.join(dict.fromkeys(workloads))}" for at, workloads in found.items())
    return f"Measured at {'; '.join(measured)}."


def show(regrets: Sequence[Regret], console: Console) -> None:
    """Print the regrets, and how many are as small as wanted."""
    made = Table(*HEADINGS, title="regret of the choice against the best of an exhaustive grid")
    for each in regrets:
        made.add_row(*each.cells)
    print_table(made, console)
    within = sum(each.is_within for each in regrets)
    say(f"{within} of {len(regrets)} intervals of the regret include 0 or end below {WANTED:.0%}.", console)


def measure(key: Key, before: Sequence[Phase], options: argparse.Namespace) -> Phase:
    """Take a phase of a workload, after those `before`."""
    name, phase = key
    workload, started = WORKLOADS[name], time.monotonic()
    source = _source(workload.source)
    if not before:
        settings = {"tuning_cache": "", **workload.settings}
        tuning = etl.tune(source, {"tuned": workload.strategy}, budget=options.budget, **settings)
        (tuned,) = tuning.strategies
        given = {} if tuned.is_foreign else dict(tuned.given)
        return Phase(time.monotonic() - started, {"choice": {**given, **tuned.chosen}, "given": given})
    grid = {f"{place}": each for place, each in enumerate(workload.combinations())}
    chosen = {each: grid[each] for each in _fastest(before, len(grid))[: KEPT[phase]]} if before[1:] else grid
    rounds: list[Mapping[str, float]] = []
    seconds = 0.0
    while not rounds or time.monotonic() - started + seconds <= options.seconds:
        began = time.monotonic()
        rounds += _rounds(source, workload, {**before[0].settings, **chosen}, options)
        seconds = time.monotonic() - began
    return Phase(time.monotonic() - started, rounds=rounds)


def _rounds(
    source: str, workload: TunedWork, configured: Mapping[str, Mapping[str, Any]], options: argparse.Namespace
) -> Iterator[Mapping[str, float]]:
    """Yield the seconds of an epoch in each round of a comparison of configurations of the workload's strategy."""
    settings = {"configured": configured, "etl_alone_rounds": 1, "records": ALL_RECORDS, **workload.settings}
    strategies = dict.fromkeys(configured, workload.strategy)
    report = etl.compare(source, strategies, rounds=options.rounds, budget=options.seconds, **settings)
    for number in range(options.rounds):
        yield {
            each.name: float(f"{each.rounds[number].wall_seconds:.5g}")
            for each in report.strategies
            if number < len(each.rounds)
        }


def _phases(path: Path, name: str) -> list[Phase]:
    """Return the phases of a workload in the journal, which has those before the one that is measured."""
    results = read_results(path, PHASES)
    return [results[name, phase] for phase in range(len(KEPT)) if (name, phase) in results]


def _regret(results: Mapping[Key, Phase], name: str) -> Regret:
    return Regret.of(name, [results[name, phase] for phase in range(len(KEPT))])


def _fastest(phases: Sequence[Phase], count: int) -> list[str]:
    """Return the `count` fastest of the grid in the even rounds, the fastest first, of those in the last phase."""
    even = [each for phase in phases for each in phase.rounds[::2]]
    arms = phases[-1].rounds[0].keys() - {"choice", "given"}
    return sorted(arms, key=lambda each: (_ratio(even, each, "choice").estimate, each))[:count]


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "as given"


def _ratio(rounds: Sequence[Mapping[str, float]], above: str, below: str) -> Interval:
    return ratio_interval([each[above] / each[below] for each in rounds if above in each and below in each])


def _source(kind: str) -> str:
    """Return the source of a workload, which is made if it is missing."""
    if kind == "photographs":
        return str(find_photographs(PHOTOGRAPHS))
    if kind == "digits":
        return str(find_digits())
    if kind == "table":
        return str(find_table(ROWS))
    return str(find_sequences(FILES)) if kind == "sequences" else kind


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = study_parser("benchmarks.studies.tuning", __doc__, rounds=ROUNDS)
    parser.add_argument(
        "--only", type=comma_separated(WORKLOADS, "workload"), default=tuple(WORKLOADS), metavar="NAME,NAME"
    )
    parser.add_argument("--budget", type=float, default=TUNE_SECONDS, metavar="SECONDS", help="for tuning a workload")
    parser.add_argument("--seconds", type=float, default=PHASE_SECONDS, metavar="SECONDS", help="for each other phase")
    options = parser.parse_args(arguments)
    if options.rounds < 2 or options.rounds % 2:
        parser.error(f"--rounds {options.rounds}: give an even number of rounds, half to pick and half to judge")
    return options


if __name__ == "__main__":
    sys.exit(main())
