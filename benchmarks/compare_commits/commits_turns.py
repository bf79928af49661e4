"""Two commits take turns, so that noise of the machine affects both alike."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence

from benchmarks.compare_commits.commits import Commit
from benchmarks.compare_commits.commits_worker import ETL, MAX_EPOCHS, METRICS, TURN_SECONDS, WALL, WORKS, overlaps
from benchmarks.console import Progress
from benchmarks.measuring.layout import ENVIRONMENT
from benchmarks.measuring.processes import MeasurementError, Server
from benchmarks.measuring.turn_rounds import Arm, Pair, Pairs, TurnRounds, Turns, cpus_of_round
from benchmarks.measuring.turns import OpenedArm
from benchmarks.servers import start_server

# Fewer pairs give no interval of the confidence that `verdict.py` asks for.
MIN_ROUNDS = 15
MAX_SECONDS = 300.0
# Seconds of turns for each metric of each pair. Pairs of processes differ, so more pairs tell more than longer ones.
PAIR_SECONDS = {ETL: 0.4, WALL: 0.3}
MIN_BLOCKS = 3
TIMEOUT_SECONDS = 120.0

# Strategy and metric.
Key = tuple[str, str]


def take_turns(
    a: Commit, b: Commit, seconds: float, progress: Progress, strategies: Sequence[str] = tuple(WORKS)
) -> dict[Key, Pairs]:
    """Measure two commits in turns, and return the times of both by strategy and metric.

    In every round each commit is imported anew, with another hash seed and memory layout (`measuring/layout.py`),
    because processes that are forked from one server share its peculiarities.

    At least `MIN_ROUNDS` pairs of processes are measured, unless a busy machine needs more than `MAX_SECONDS` for them.

    Raises
    ------
    DifferentWork
        If the commits did not load the same batches.
    MeasurementError
        If one of the commits cannot be measured.
    """
    began = time.monotonic()
    # Epochs of a turn: equally many for both commits, in all pairs. The first pair decides.
    epochs: dict[Key, int] = {}

    def pair(strategy: str, number: int) -> Pair:
        def turns(opened: OpenedArm) -> dict[str, Turns]:
            for metric, epoch in opened.seconds.items():
                epochs.setdefault((strategy, metric), min(MAX_EPOCHS, max(1, round(TURN_SECONDS / epoch))))
            return {metric: turns_of(strategy, metric, epochs[strategy, metric], number) for metric in METRICS}

        # Two servers, even if they are one commit.
        one, other = (
            Arm(server, {"strategy": strategy, "slower": commit.slower}, f"{strategy} of {commit}")
            for server, commit in (((0, a), a), ((1, b), b))
        )
        return Pair(one, other, turns)

    with tempfile.TemporaryDirectory() as stores:
        rounds = TurnRounds(
            strategies,
            pair,
            lambda server, number: start_commit(server[1], strategies, stores, number),
            on_failure=_raise,
        )
        longest = 0.0
        while time.monotonic() - began + longest < (seconds if rounds.finished >= MIN_ROUNDS else MAX_SECONDS):
            started = time.monotonic()
            rounds.take_round()
            longest = max(longest, time.monotonic() - started)
            progress(min(1.0, rounds.finished / MIN_ROUNDS, (time.monotonic() - began) / seconds))
    progress(1.0)
    return {
        (strategy, metric): Pairs([each.blocks[metric] for each in rounds.samples[strategy].values()])
        for strategy in strategies
        for metric in METRICS
    }


def turns_of(strategy: str, metric: str, epochs: int, number: int) -> Turns:
    """Return the turns of a pair in one metric, of so many epochs each, in the round with this number."""
    cpus = cpus_of_round(number, 2 if overlaps(strategy, metric) else 1)
    return Turns({"metric": metric, "epochs": epochs, "cpus": cpus}, PAIR_SECONDS[metric], MIN_BLOCKS)


def start_commit(commit: Commit, strategies: Sequence[str], stores: str, number: int) -> Server:
    """Start the server of a commit, which writes the stores of `strategies` into a new folder in `stores`."""
    return start_server(
        f"commit {commit}",
        "compare_commits.commits_worker:prepare",
        {"folder": tempfile.mkdtemp(dir=stores), "strategies": list(strategies), "packages": str(commit.folder)},
        packages=commit.folder,
        hash_seed=number,
        environment=ENVIRONMENT,
        timeout=TIMEOUT_SECONDS,
    )


def _raise(_: object, error: MeasurementError) -> None:
    raise error
