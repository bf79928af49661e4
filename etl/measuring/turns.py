"""Alternating turns: two arms take turns of milliseconds, A B B A, so that noise of the machine affects both alike."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# The order of A (0) and B (1); every second pair of processes begins with B. A steady drift cancels.
BLOCKS = ((0, 1, 1, 0), (1, 0, 0, 1))
# `seconds_of` reads twice how long the thread has waited. Both readings together usually take a tenth of this.
MAX_READING_SECONDS = 0.0005

# Seconds of A, and of B, in one block of turns: geometric means.
Block = tuple[float, float]


@dataclass
class Pairs:
    """Blocks of turns for one metric, one list for each pair of fresh processes."""

    blocks: list[list[Block]] = field(default_factory=list)

    @property
    def log_ratios(self) -> list[float]:
        """Median of log(B / A) over the blocks of each pair of processes."""
        return [statistics.median(math.log(b / a) for a, b in pair) for pair in self.blocks]

    @property
    def medians(self) -> Block:
        """Median seconds of A and of B over all blocks."""
        every = [block for pair in self.blocks for block in pair]
        return statistics.median(a for a, _ in every), statistics.median(b for _, b in every)


def take_blocks(take: Callable[[int], float], number: int, seconds: float, min_blocks: int) -> list[Block]:
    """Take the blocks of turns of one pair of processes.

    Parameters
    ----------
    take : callable
        Takes a turn of A (0) or B (1), and returns its seconds.
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
    """Return the seconds that `run` takes, without the time in which another thread or process had the CPU.

    If `run` works with several threads, the time is not reduced, since the CPU may have been used by one of them. `run`
    is called again if the reading of the waiting time was itself interrupted.
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
        # A wait during a reading is included in `waited` but not in `wall`.
        if outside < MAX_READING_SECONDS and waited < wall:
            return wall - waited


def settle_on(cpus: Sequence[int]) -> None:
    """Move this thread to the first of `cpus`, and then allow it on all of them.

    Otherwise the system may leave one of the arms, for seconds, on the same CPU as another busy process.
    """
    os.sched_setaffinity(0, cpus[:1])
    os.sched_setaffinity(0, cpus)


def _waited_seconds() -> float:
    """Return how long this thread has been ready to run without a CPU, in seconds."""
    return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) * 1e-9
