"""Two commits taking turns, so that whatever the machine does meets both."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.compare_commits.arm import Arm, open_arm
from benchmarks.compare_commits.commits import Commit
from benchmarks.compare_commits.work import ETL, FIGURES, MOST_EPOCHS, TURN_SECONDS, WALL, WORKS, overlaps
from benchmarks.measuring.turns import DifferentWork, Pairs, take_blocks

# Fewer pairs could not give an interval of the confidence that is asked for (judgement.py).
LEAST_ROUNDS = 15
MOST_SECONDS = 300.0
# Of turns, for each figure of each pair. Pairs of processes differ, so that more pairs tell more than longer ones.
PAIR_SECONDS = {ETL: 0.4, WALL: 0.3}
LEAST_BLOCKS = 3

Key = tuple[str, str]
# Told which part of the work is done, from 0 to 1.
Progress = Callable[[float], None]


def take_turns(
    a: Commit, b: Commit, seconds: float, progress: Progress, strategies: Sequence[str] = tuple(WORKS)
) -> dict[Key, Pairs]:
    """For each of `strategies` and each figure the times of both commits, from as many pairs of processes as there is
    time for in `seconds`; from at least `LEAST_ROUNDS`, unless a busy machine needs more than `MOST_SECONDS` for them.

    In every round each commit is imported anew, with another hash seed and memory layout (`measuring/layout.py`): what
    is peculiar to a process is so to all that are forked from it. Raises `DifferentWork` and `MeasurementError`.
    """
    began = time.monotonic()
    pairs = {(strategy, figure): Pairs() for strategy in strategies for figure in FIGURES}
    epochs: dict[Key, int] = {}
    rounds = 0
    longest = 0.0
    while time.monotonic() - began + longest < (seconds if rounds >= LEAST_ROUNDS else MOST_SECONDS):
        started = time.monotonic()
        with ExitStack() as stack:
            arms = [stack.enter_context(open_arm(commit, strategies, hash_seed=rounds)) for commit in (a, b)]
            for arm in arms:
                arm.wait_until_ready()
            for strategy in random.Random(rounds).sample(strategies, len(strategies)):
                _take_turns_at(strategy, arms, rounds, pairs, epochs)
        rounds += 1
        longest = max(longest, time.monotonic() - started)
        progress(min(1.0, rounds / LEAST_ROUNDS, (time.monotonic() - began) / seconds))
    progress(1.0)
    return pairs


def _take_turns_at(
    strategy: str, arms: list[Arm], number: int, pairs: Mapping[Key, Pairs], epochs: dict[Key, int]
) -> None:
    """All figures of a strategy, from a fresh process of either commit."""
    for arm in arms:
        arm.server.send({"strategy": strategy})
    ready = [arm.server.receive() for arm in arms]
    _check_same_work(strategy, arms, ready)
    for figure in FIGURES:
        # As many for both commits, in all pairs.
        if (strategy, figure) not in epochs:
            fits = TURN_SECONDS / ready[0]["seconds"][figure]
            epochs[strategy, figure] = min(MOST_EPOCHS, max(1, round(fits)))
        request = {
            "figure": figure,
            "epochs": epochs[strategy, figure],
            "cpus": _cpus(number, overlaps(strategy, figure)),
        }

        def take(arm: int, request: dict[str, Any] = request) -> float:
            return float(arms[arm].server.ask(request)["seconds"])

        pairs[strategy, figure].blocks.append(take_blocks(take, number, PAIR_SECONDS[figure], LEAST_BLOCKS))
    for each in arms:
        each.server.end_session()


def _check_same_work(strategy: str, arms: list[Arm], ready: list[dict[str, Any]]) -> None:
    for part, name in (("samples", "number of records"), ("digest", "digest of the batches")):
        one, other = (answer[part] for answer in ready)
        if one != other:
            raise DifferentWork(
                f"not the same work: in strategy {strategy} the {name} is {one} in {arms[0].commit} and {other} in "
                f"{arms[1].commit}, so their times cannot be compared"
            )


def _cpus(number: int, several: bool) -> list[int]:
    """The CPU of a turn, another one in the next round; and one more where loading and compute are to overlap."""
    available = sorted(os.sched_getaffinity(0))
    first = available[number // 2 % len(available)]
    return [first, *[cpu for cpu in available if cpu != first][:1]] if several else [first]
