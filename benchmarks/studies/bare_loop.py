"""Compare a loader under the clock with a bare loop: `python -m benchmarks.studies.bare_loop PATH MODULE:FUNCTION`.

Both loops read every batch, as a training step does. They take turns in one process, over one loader, since processes
differ more than the loops do. What remains is what measuring costs the loader.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import etl
from benchmarks.console import say_failure, wide_console
from benchmarks.measuring.arrays import views_in
from benchmarks.measuring.clock import run_epoch
from benchmarks.measuring.statistics import MIN_ROUNDS, Interval, ratio_interval
from benchmarks.user_loaders import find_function


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 2 if the loader cannot be measured."""
    options = parse(arguments)
    errors = Console(stderr=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            task = make_task(options, folder)
            function = find_function(options.loader)
            prepare = etl.strategies.find_prepare(function)
            if prepare is not None:
                prepare(task)
            loader = etl.strategies.open_loader(function, task)
            try:
                with errors.status("warming up") as status:
                    walls = take_turns(loader, options.rounds, options.epochs, status.update)
            finally:
                etl.strategies.close_loader(loader)
    except (ValueError, OSError) as error:
        say_failure(error, errors)
        return 2
    wide_console().print(describe(options.loader, walls), highlight=False, soft_wrap=True)
    return 0


def make_task(options: argparse.Namespace, folder: str) -> etl.Task:
    """Return the task of the loader: all records of a source, on the CPUs of this process."""
    cpus, source = len(os.sched_getaffinity(0)), etl.open_source(options.path)
    return etl.Task(
        batch_size=options.batch_size,
        dtype="float32",
        seed=0,
        epoch=0,
        records=len(source),
        cpus=cpus,
        workers=options.workers or cpus,
        folder=folder,
        open_path=lambda: str(Path(options.path).absolute()),
        open_source=lambda: source,
    )


def take_turns(
    loader: Iterable[Any], rounds: int, epochs: int, progress: Callable[[str], None]
) -> list[tuple[float, float]]:
    """Return the seconds of a bare loop and of the clock in each round, after an untimed epoch."""
    loops = (bare_epoch, clocked_epoch)
    bare_epoch(loader)
    walls = []
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        seconds = dict.fromkeys(loops, 0.0)
        for loop in random.sample(loops * epochs, len(loops) * epochs):
            seconds[loop] += loop(loader)
        walls.append((seconds[bare_epoch], seconds[clocked_epoch]))
    return walls


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


def describe(name: str, walls: Sequence[tuple[float, float]]) -> str:
    """Return the throughput under the clock as a ratio to that of the bare loop, and its interval."""
    ratio = ratio_interval([bare / clocked for bare, clocked in walls])
    return f"{name}: under the clock {ratio.estimate:.3f} of the bare loop's throughput, {_range(ratio)}"


def _range(ratio: Interval) -> str:
    if ratio.low is None or ratio.high is None:
        return f"no interval: it takes {MIN_ROUNDS} rounds"
    return f"95% interval {ratio.low:.3f} to {ratio.high:.3f}, {ratio.count} rounds"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.bare_loop", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("path", metavar="PATH", help="the loader's `path`, such as a folder of photographs")
    parser.add_argument("loader", metavar="MODULE:FUNCTION", help="found from this folder")
    parser.add_argument("--rounds", type=int, default=12, metavar="N", help="default: 12")
    parser.add_argument("--epochs", type=int, default=2, metavar="N", help="of each loop in a round (default: 2)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="default: 32")
    parser.add_argument("--workers", type=int, metavar="N", help="default: as many as there are CPUs")
    options = parser.parse_args(arguments)
    for name in ("rounds", "epochs", "batch_size", "workers"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
