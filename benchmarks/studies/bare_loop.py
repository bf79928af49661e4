"""Compare loaders under the clock with a bare loop: `python -m benchmarks.studies.bare_loop PHOTOGRAPHS`.

Both loops read every batch, as a training step does. They take turns in one process, over one loader, since processes
differ more than the loops do. What remains is what measuring costs the loader.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import etl
from benchmarks.journal import Kind, read_results
from benchmarks.measuring.arrays import views_in
from benchmarks.measuring.clock import run_epoch
from benchmarks.measuring.statistics import ratio_interval
from benchmarks.measuring.values import JsonValues
from benchmarks.studies.study import FOLDER, Plan, as_markdown, describe_ratio, print_lines, run_study, study_parser

BATCH_SIZE, SIZE = 32, 224
# Epochs of each loop in a round, in random order.
EPOCHS = 2


@dataclass(frozen=True)
class Turns(JsonValues):
    """Seconds of the epochs of a round, in the bare loop and under the clock."""

    bare: list[float]
    clocked: list[float]

    @property
    def ratio(self) -> float:
        """Throughput under the clock over that of the bare loop."""
        return statistics.fmean(self.bare) / statistics.fmean(self.clocked)


TURNS: Kind[tuple[str, int], Turns] = Kind("bare_loop", tuple[str, int], Turns)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rounds that are missing, and print the table; return 2 if that fails."""
    parser = study_parser("benchmarks.studies.bare_loop", __doc__, rounds=12)
    parser.add_argument("path", metavar="PHOTOGRAPHS", help="such as the folder that `etl dataset photos` makes")
    options = parser.parse_args(arguments)
    source = etl.open_source(options.path)
    return run_study(
        TURNS,
        options.samples or FOLDER / "bare-loop.jsonl",
        Plan(
            question="What does the clock cost a loader?",
            arms="a literal for loop and an epoch under the clock, over the same loader in one process",
            number=f"{options.rounds} rounds for each of {len(LOADERS)} loaders, {EPOCHS} epochs of each loop",
            nominal_error="5% for each interval",
            stopping="when all rounds are measured",
            exclusions="the first epoch of each round, which warms the loader up",
            primary="throughput under the clock over that of the bare loop",
        ),
        {"records": len(source), "batch_size": BATCH_SIZE},
        [(name, number) for number in range(options.rounds) for name in LOADERS],
        lambda key: take_turns(LOADERS[key[0]](source)),
        lambda results, console: print_lines("Throughput under the clock", lines_of(results), console),
        lambda key: f"{key[0]}, round {key[1] + 1}",
    )


def iterate(source: Any) -> etl.RawIterator:
    """Return this project's plain iterator."""
    return etl.RawIterator(source, etl.image_pipeline(size=SIZE), BATCH_SIZE)


class Generator:
    """Batches of a generator, which makes each when it is asked for."""

    def __init__(self, source: Any) -> None:
        self._batches = iterate(source)

    def __iter__(self) -> Iterator[Any]:
        yield from self._batches


class Records:
    """The records of a source after a pipeline, for a torch DataLoader."""

    def __init__(self, source: Any) -> None:
        self._source, self._pipeline = source, etl.image_pipeline(size=SIZE)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return dict(self._pipeline(self._source[index]))


def open_dataloader(source: Any) -> Iterable[Any]:
    """Return a torch DataLoader with two workers."""
    from torch.utils.data import DataLoader  # here, because asv imports this module to find its suites

    records: Any = Records(source)
    return DataLoader(records, BATCH_SIZE, num_workers=2)


LOADERS: dict[str, Callable[[Any], Iterable[Any]]] = {
    "a DataLoader with two workers": open_dataloader,
    "a generator": Generator,
    "`RawIterator`": iterate,
    "`AsyncIterator`": lambda source: etl.AsyncIterator(iterate(source)),
}


def take_turns(loader: Iterable[Any]) -> Turns:
    """Return the seconds of a bare loop and of the clock, after an untimed epoch."""
    seconds: dict[Any, list[float]] = {bare_epoch: [], clocked_epoch: []}
    bare_epoch(loader)
    for loop in random.sample([*seconds] * EPOCHS, len(seconds) * EPOCHS):
        seconds[loop].append(round(loop(loader), 5))
    etl.strategies.close_loader(loader)
    return Turns(seconds[bare_epoch], seconds[clocked_epoch])


def bare_epoch(loader: Iterable[Any]) -> float:
    """Return the seconds of an epoch in the loop of a training script."""
    started = time.perf_counter()
    for batch in loader:
        read(batch)
    return time.perf_counter() - started


def clocked_epoch(loader: Iterable[Any]) -> float:
    """Return the seconds of an epoch under the clock of every measurement in this repository."""
    return run_epoch(loader, read).wall.total


def read(batch: Any) -> None:
    """Read every element of `batch`."""
    for array in views_in(batch):
        array.sum()


def render(path: Path) -> str:
    """Return what a journal says, as a Markdown table."""
    return as_markdown(lines_of(read_results(path, TURNS))) + "\n"


def lines_of(results: dict[tuple[str, int], Turns]) -> list[tuple[str, str, str]]:
    """Return the lines of the table: each loader's throughput under the clock over that of the bare loop."""
    lines = [("loader", "under the clock", "rounds")]
    for name in dict.fromkeys(key[0] for key in results):
        ratio = ratio_interval([each.ratio for key, each in results.items() if key[0] == name])
        lines.append((name, describe_ratio(ratio), str(ratio.count)))
    return lines


if __name__ == "__main__":
    sys.exit(main())
