"""Two commits take turns, so that noise of the machine affects both alike."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare_commits.commits import Commit
from benchmarks.compare_commits.commits_worker import ETL, MAX_EPOCHS, METRICS, TURN_SECONDS, WALL, WORKS, overlaps
from benchmarks.console import Progress
from benchmarks.measuring.layout import ENVIRONMENT, draw_environment
from benchmarks.measuring.processes import MeasurementError, Server
from benchmarks.measuring.same_work import DoneWork, check_same_work
from benchmarks.measuring.turns import Pairs, take_blocks
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

    Parameters
    ----------
    seconds : float
        Time to measure for. At least `MIN_ROUNDS` pairs of processes are measured, unless a busy machine needs more
        than `MAX_SECONDS` for them.
    progress : Progress
        Called after every round.
    strategies : sequence of str
        Keys of `WORKS`.

    Raises
    ------
    DifferentWork
        If the commits did not load the same batches.
    MeasurementError
        If one of the commits cannot be measured.
    """
    began = time.monotonic()
    pairs = {(strategy, metric): Pairs() for strategy in strategies for metric in METRICS}
    epochs: dict[Key, int] = {}
    rounds = 0
    longest = 0.0
    while time.monotonic() - began + longest < (seconds if rounds >= MIN_ROUNDS else MAX_SECONDS):
        started = time.monotonic()
        with ExitStack() as stack:
            arms = [stack.enter_context(open_arm(commit, strategies, hash_seed=rounds)) for commit in (a, b)]
            for arm in arms:
                arm.wait_until_ready()
            for strategy in random.Random(rounds).sample(strategies, len(strategies)):
                _take_turns_at(strategy, arms, rounds, pairs, epochs)
        rounds += 1
        longest = max(longest, time.monotonic() - started)
        progress(min(1.0, rounds / MIN_ROUNDS, (time.monotonic() - began) / seconds))
    progress(1.0)
    return pairs


@dataclass(frozen=True)
class Arm:
    """One of two commits that are compared, and its server."""

    commit: Commit
    server: Server

    def wait_until_ready(self) -> None:
        """Wait until the server has imported everything and written its stores.

        Raises
        ------
        MeasurementError
            If it imported the packages from another folder.
        """
        for package, folder in self.server.wait_until_ready().items():
            if Path(folder).resolve() != self.commit.folder.resolve():
                raise MeasurementError(
                    f"{self.server.name} imported {package} from {folder}, not from {self.commit.folder}"
                )


@contextmanager
def open_arm(commit: Commit, strategies: Sequence[str], hash_seed: int) -> Iterator[Arm]:
    """Start the server of a commit; its stores are deleted when the context ends.

    Parameters
    ----------
    strategies : sequence of str
        Keys of `WORKS`, whose stores it writes.
    """
    with (
        tempfile.TemporaryDirectory() as stores,
        start_server(
            f"commit {commit}",
            "compare_commits.commits_worker:prepare",
            {"folder": stores, "strategies": list(strategies)},
            packages=commit.folder,
            hash_seed=hash_seed,
            environment={**ENVIRONMENT, **draw_environment()},
            timeout=TIMEOUT_SECONDS,
        ) as server,
    ):
        yield Arm(commit, server)


def _take_turns_at(
    strategy: str, arms: list[Arm], number: int, pairs: Mapping[Key, Pairs], epochs: dict[Key, int]
) -> None:
    """Take the turns for all metrics of a strategy, in a fresh process of either commit."""
    for arm in arms:
        arm.server.send({"strategy": strategy, "slower": arm.commit.slower})
    ready = [arm.server.receive() for arm in arms]
    one, other = (DoneWork(each["samples"], each["digest"]) for each in ready)
    check_same_work(f"{strategy} of {arms[0].commit}", one, str(arms[1].commit), other)
    for metric in METRICS:
        # A turn has equally many epochs for both commits, in all pairs.
        if (strategy, metric) not in epochs:
            fits = TURN_SECONDS / ready[0]["seconds"][metric]
            epochs[strategy, metric] = min(MAX_EPOCHS, max(1, round(fits)))
        request = {
            "metric": metric,
            "epochs": epochs[strategy, metric],
            "cpus": _cpus(number, overlaps(strategy, metric)),
        }

        def take(arm: int, request: dict[str, Any] = request) -> float:
            return float(arms[arm].server.ask(request)["seconds"])

        pairs[strategy, metric].blocks.append(take_blocks(take, number, PAIR_SECONDS[metric], MIN_BLOCKS))
    for each in arms:
        each.server.end_session()


def _cpus(number: int, several: bool) -> list[int]:
    """Return the CPU of a turn, and a second one if loading and compute overlap (`several`).

    The CPU changes every two rounds, so that each arm is the first one once on every CPU.
    """
    available = sorted(os.sched_getaffinity(0))
    first = available[number // 2 % len(available)]
    return [first, *[cpu for cpu in available if cpu != first][:1]] if several else [first]
