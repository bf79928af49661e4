"""Alternating turns: two arms take turns of milliseconds, A B B A, so that whatever the machine does meets both."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# One arm is A, the other B; every second pair begins with the other one. A drift that is steady cancels.
BLOCKS = ((0, 1, 1, 0), (1, 0, 0, 1))
# Of how long a thread has waited, twice; usually a tenth of that.
MAX_READING_SECONDS = 0.0005

# Seconds of A, and of B, in one block of turns: geometric means.
Block = tuple[float, float]


class DifferentWork(Exception):  # noqa: N818 - the word that the reader looks for
    """Variants did not do the same work; their times say nothing about each other."""


@dataclass
class Pairs:
    """Blocks of turns for one metric, one list for each pair of fresh processes."""

    blocks: list[list[Block]] = field(default_factory=list)

    @property
    def log_ratios(self) -> list[float]:
        """For every pair log(B / A), the median of its blocks."""
        return [statistics.median(math.log(b / a) for a, b in pair) for pair in self.blocks]

    @property
    def medians(self) -> Block:
        """Seconds of A and of B, over all blocks."""
        every = [block for pair in self.blocks for block in pair]
        return statistics.median(a for a, _ in every), statistics.median(b for _, b in every)


def take_blocks(take: Callable[[int], float], number: int, seconds: float, min_blocks: int) -> list[Block]:
    """Take the blocks of turns of one pair of processes.

    Parameters
    ----------
    take : callable
        Takes a turn of A (0) or B (1), and returns its seconds.
    number : int
        The number of the pair, which decides which arm begins.
    seconds : float
        How long to go on.
    min_blocks : int
        Blocks to take even if there is no time for them.
    """
    blocks: list[Block] = []
    until = time.monotonic() + seconds
    while len(blocks) < min_blocks or time.monotonic() < until:
        turns: tuple[list[float], list[float]] = ([], [])
        for arm in BLOCKS[number % 2]:
            turns[arm].append(take(arm))
        blocks.append((statistics.geometric_mean(turns[0]), statistics.geometric_mean(turns[1])))
    return blocks


def seconds_of(run: Callable[[], object], is_one_thread: bool) -> float:
    """Return the seconds that `run` takes, without those in which something else had the CPU of this thread.

    If `run` works with other threads, these may have been what had the CPU: then all seconds count. `run` is called
    again if it was not clear.
    """
    while True:
        started = time.perf_counter()
        waited = _waited_seconds()
        began = time.perf_counter()
        run()
        ended = time.perf_counter()
        waited = _waited_seconds() - waited
        outside = began - started + time.perf_counter() - ended
        wall = ended - began
        if not is_one_thread:
            return wall
        # A wait while the waits were read is in one of the two, and not in the other.
        if outside < MAX_READING_SECONDS and waited < wall:
            return wall - waited


def settle_on(cpus: Sequence[int]) -> None:
    """Run on the first of `cpus`, from which the system may move threads to the others.

    Left alone, it keeps one arm beside some other busy process for seconds, and not the other arm.
    """
    os.sched_setaffinity(0, cpus[:1])
    os.sched_setaffinity(0, cpus)


def _waited_seconds() -> float:
    """Return for how long this thread has been ready to run while something else had the CPU."""
    return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) * 1e-9
