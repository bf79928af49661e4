"""Compare a loop that `etl.watch` watches with the same loop alone: `python -m benchmarks.studies.watching`.

Both loops take turns in a process, over one DataLoader. Each round has a new process, since where its memory lies
affects its speed. A step takes five milliseconds, in which the process waits, as for a device, or computes. What
remains is what watching costs.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import etl
from benchmarks.journal import Kind, read_results
from benchmarks.measuring.statistics import ratio_interval
from benchmarks.measuring.values import JsonValues
from benchmarks.studies.study import (
    FOLDER,
    Plan,
    as_markdown,
    describe_ratio,
    in_fresh_process,
    print_lines,
    run_study,
    study_parser,
)

STEP_SECONDS, STEPS, BATCH_SIZE = 0.005, 200, 8
# Epochs of each loop in a round, in random order.
EPOCHS = 4
WAITS, COMPUTES = "waits", "computes"
# Workers of the DataLoader, and what a step does.
CASES = ((0, WAITS), (2, WAITS), (0, COMPUTES))


@dataclass(frozen=True)
class Turns(JsonValues):
    """Seconds of the epochs of a round, alone and watched."""

    alone: list[float]
    watched: list[float]

    @property
    def ratio(self) -> float:
        """Time of a watched epoch over that of one alone."""
        return statistics.median(self.watched) / statistics.median(self.alone)


TURNS: Kind[tuple[int, str, int], Turns] = Kind("watching", tuple[int, str, int], Turns)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rounds that are missing, and print the table; return 2 if that fails."""
    options = study_parser("benchmarks.studies.watching", __doc__, rounds=24).parse_args(arguments)
    return run_study(
        TURNS,
        options.samples or FOLDER / "watching.jsonl",
        Plan(
            question="What does etl.watch cost a loop?",
            arms="a loop over a DataLoader, and the same loop over etl.watch of it, in turns in one process",
            number=f"{options.rounds} processes for each of {len(CASES)} cases, {EPOCHS} epochs of each loop in each",
            nominal_error="5% for each interval",
            stopping="when all rounds are measured",
            exclusions="the first epoch of each round, which warms the loader up",
            primary="time of an epoch when watched over that alone; the aim is an upper end of at most 1.005",
        ),
        {"step_seconds": STEP_SECONDS, "steps": STEPS, "batch_size": BATCH_SIZE},
        [(*case, number) for number in range(options.rounds) for case in CASES],
        lambda key: in_fresh_process(take_turns, key[0], key[1]),
        lambda results, console: print_lines("Time of a watched loop", lines_of(results), console),
        lambda key: f"{key[0]} workers, a step {key[1]}, round {key[2] + 1}",
    )


def take_turns(workers: int, does: str) -> Turns:
    """Return the seconds of both loops over a DataLoader, after an untimed epoch."""
    from torch.utils.data import DataLoader  # here, because asv imports this module to find its suites

    records: Any = [np.full(64, number, np.float32) for number in range(STEPS * BATCH_SIZE)]
    loader = DataLoader(records, BATCH_SIZE, num_workers=workers, persistent_workers=workers > 0)
    step = partial(time.sleep, STEP_SECONDS) if does == WAITS else partial(work, _passes_of(STEP_SECONDS))
    seconds: dict[Callable[..., float], list[float]] = {alone: [], watched: []}
    alone(loader, step)
    for loop in random.sample([*seconds] * EPOCHS, len(seconds) * EPOCHS):
        seconds[loop].append(round(loop(loader, step), 5))
    return Turns(seconds[alone], seconds[watched])


def alone(loader: Iterable[Any], step: Callable[[], None]) -> float:
    """Return the seconds of an epoch in the loop of a training script."""
    started = time.perf_counter()
    for _ in loader:
        step()
    return time.perf_counter() - started


def watched(loader: Iterable[Any], step: Callable[[], None]) -> float:
    """Return the seconds of the same epoch when it is watched, without the start of watching and the diagnosis."""
    loop = etl.watch(loader)
    started = time.perf_counter()
    for _ in loop:
        step()
    seconds = time.perf_counter() - started
    loop.summary()
    return seconds


DATA = np.random.default_rng(0).standard_normal(1024)
OUT = np.empty_like(DATA)


def work(passes: int) -> None:
    """Compute for a fixed number of passes."""
    for _ in range(passes):
        np.tanh(DATA, out=OUT)


def _passes_of(seconds: float) -> int:
    passes, started = 0, time.perf_counter()
    while time.perf_counter() - started < 50 * seconds:
        work(1)
        passes += 1
    return max(1, passes // 50)


def render(path: Path) -> str:
    """Return what a journal says, as a Markdown table."""
    return as_markdown(lines_of(read_results(path, TURNS))) + "\n"


def lines_of(results: dict[tuple[int, str, int], Turns]) -> list[tuple[str, str, str, str]]:
    """Return the lines of the table: the time of a watched loop over that of the loop alone."""
    lines = [("DataLoader", "in a step, the process", "watched over alone", "rounds")]
    for workers, does in dict.fromkeys(key[:2] for key in results):
        ratio = ratio_interval([each.ratio for key, each in results.items() if key[:2] == (workers, does)])
        lines.append((f"{workers or 'no'} workers", does, describe_ratio(ratio, 4), str(ratio.count)))
    return lines


if __name__ == "__main__":
    sys.exit(main())
