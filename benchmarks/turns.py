"""Two sides taking turns, so that whatever the machine does meets both."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# One side is A, the other B; every second pair begins with the other one. A drift that is steady cancels.
BLOCKS = ((0, 1, 1, 0), (1, 0, 0, 1))

# Seconds of A, and of B, in one block of turns: geometric means.
Block = tuple[float, float]


class OtherWork(Exception):  # noqa: N818 - the word the reader looks for
    """The two sides did not do the same work; their times say nothing about each other."""


@dataclass
class Pairs:
    """Of one figure, for every pair of fresh processes, its blocks of turns."""

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


def take_blocks(take: Callable[[int], float], number: int, seconds: float, least: int) -> list[Block]:
    """Blocks of turns of pair `number` for so many `seconds`, and at least so many. `take` takes a turn of A (0) or B
    (1) and gives its seconds.
    """
    blocks: list[Block] = []
    until = time.monotonic() + seconds
    while len(blocks) < least or time.monotonic() < until:
        turns: tuple[list[float], list[float]] = ([], [])
        for side in BLOCKS[number % 2]:
            turns[side].append(take(side))
        blocks.append((statistics.geometric_mean(turns[0]), statistics.geometric_mean(turns[1])))
    return blocks
