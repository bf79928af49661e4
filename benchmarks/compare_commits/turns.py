"""Two commits taking turns, so that whatever the machine does meets both."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks.compare_commits.commits import Commit
from benchmarks.compare_commits.side import Side
from benchmarks.compare_commits.work import ETL, FIGURES, MOST_EPOCHS, TURN_SECONDS, WALL, WORKS

# Each with another hash seed, the same for both commits. What is peculiar to a server stays so in all that are forked
# from it, so a change is one only where all starts have seen it (judgement.py).
STARTS = 3
# Fewer pairs could not give an interval of the confidence that is asked for (judgement.py).
LEAST_ROUNDS = 15
MOST_SECONDS = 300.0
# One commit is A, the other B; every second pair begins with the other one. A drift that is steady cancels.
TURNS = ((0, 1, 1, 0), (1, 0, 0, 1))
# So many of them make a pair. Loading alone is what a commit decides about; of the wall time most is compute.
REPEATS = {ETL: 6, WALL: 3}

Key = tuple[str, str]
Pair = tuple[tuple[float, ...], tuple[float, ...]]
# Told which part of the work is done, from 0 to 1.
Progress = Callable[[float], None]


class OtherWork(Exception):  # noqa: N818 - the word the reader looks for
    """The commits did not load the same batches; their times say nothing about each other."""


@dataclass
class Pairs:
    """Of one figure for every start, and in it for every pair of fresh processes, the seconds of an epoch in the turns
    of A, and in those of B.
    """

    starts: list[list[Pair]] = field(default_factory=list)

    @property
    def log_ratios(self) -> list[list[float]]:
        """For every start, and in it for every pair, log(B / A)."""
        return [[math.log(_lower_quartile(b) / _lower_quartile(a)) for a, b in start] for start in self.starts]


def take_turns(
    a: Commit, b: Commit, seconds: float, progress: Progress, strategies: Sequence[str] = tuple(WORKS)
) -> dict[Key, Pairs]:
    """For each of `strategies` and each figure the times of both commits, from as many pairs of processes as there is
    time for in `seconds`; from at least `LEAST_ROUNDS`, unless a busy machine needs more than `MOST_SECONDS` for them.
    Raises `OtherWork` and `Failed`.
    """
    began = time.monotonic()
    pairs = {(strategy, figure): Pairs() for strategy in strategies for figure in FIGURES}
    epochs: dict[Key, int] = {}
    rounds = 0
    for start in range(STARTS):
        ends = began + seconds * (start + 1) / STARTS
        longest_ends = began + MOST_SECONDS * (start + 1) / STARTS
        least = LEAST_ROUNDS * (start + 1) // STARTS
        with ExitStack() as stack:
            sides = [stack.enter_context(Side(commit, hash_seed=start)) for commit in (a, b)]
            for side in sides:
                side.wait_until_ready()
            for each in pairs.values():
                each.starts.append([])
            longest = 0.0
            while time.monotonic() + longest < (longest_ends if rounds < least else ends):
                started = time.monotonic()
                for strategy in random.Random(rounds).sample(strategies, len(strategies)):
                    _take_turns_at(strategy, sides, rounds, pairs, epochs)
                rounds += 1
                longest = max(longest, time.monotonic() - started)
                progress(min(1.0, rounds / LEAST_ROUNDS, (time.monotonic() - began) / seconds))
    progress(1.0)
    return pairs


def _take_turns_at(
    strategy: str, sides: list[Side], number: int, pairs: Mapping[Key, Pairs], epochs: dict[Key, int]
) -> None:
    """Both figures of a strategy, from a fresh process of either commit."""
    for side in sides:
        side.tell({"strategy": strategy})
    ready = [side.hear() for side in sides]
    _check_same_work(strategy, sides, ready)
    for figure in FIGURES:
        # As many for both commits, in all pairs.
        if (strategy, figure) not in epochs:
            fits = TURN_SECONDS / ready[0]["seconds"][figure]
            epochs[strategy, figure] = min(MOST_EPOCHS, max(1, math.ceil(fits)))
        request = {
            "figure": figure,
            "epochs": epochs[strategy, figure],
            "cpus": _cpus(number, strategy.startswith("async-") and figure == WALL),
        }
        times: tuple[list[float], list[float]] = ([], [])
        for turn in TURNS[number % 2] * REPEATS[figure]:
            times[turn].append(_lower_quartile(sides[turn].ask(request)["seconds"]))
        pairs[strategy, figure].starts[-1].append((tuple(times[0]), tuple(times[1])))
    for side in sides:
        side.ask({})


def _check_same_work(strategy: str, sides: list[Side], ready: list[dict[str, Any]]) -> None:
    for part, name in (("samples", "number of records"), ("digest", "digest of the batches")):
        one, other = (answer[part] for answer in ready)
        if one != other:
            raise OtherWork(
                f"not the same work: in strategy {strategy} the {name} is {one} in {sides[0].commit} and {other} in "
                f"{sides[1].commit}, so their times cannot be compared"
            )


def _cpus(number: int, several: bool) -> list[int]:
    """The CPU of a turn, another one in the next round; and one more where loading and compute are to overlap."""
    available = sorted(os.sched_getaffinity(0))
    first = available[number // 2 % len(available)]
    return [first, *[cpu for cpu in available if cpu != first][:1]] if several else [first]


def _lower_quartile(seconds: Sequence[float]) -> float:
    """Of times for the same work, to which others on the machine only add, and seldom to a quarter of them."""
    return sorted(seconds)[len(seconds) // 4]
