"""Rounds of turns: two arms alternate, A B B A, so that noise of the machine affects both alike."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .fleet import Fleet
from .processes import Server
from .rounds import Rounds, Variant
from .same_work import check_same_work
from .server import Answer, Request
from .turns import OpenedArm
from .values import JsonValues

# The order of A (0) and B (1); every second pair of processes begins with B. A steady drift cancels.
BLOCKS = ((0, 1, 1, 0), (1, 0, 0, 1))

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


@dataclass(frozen=True)
class Arm:
    """One way to do some work.

    Attributes
    ----------
    server : hashable
        Arms that share it run in processes that are forked from one server.
    request : Request
        Opens a session, whose first answer is an `OpenedArm`, and each further one has the "seconds" of a turn.
    label : str
        Its name in the error if two arms do different work.
    """

    server: Hashable
    request: Request
    label: str


@dataclass(frozen=True)
class Turns:
    """The turns of a pair in one metric.

    Attributes
    ----------
    request : Request
        Asks either process for a turn.
    seconds : float
        Time for all turns of a pair.
    min_blocks : int
        Blocks to take even if there is no time for them.
    """

    request: Request
    seconds: float
    min_blocks: int = 1


@dataclass(frozen=True)
class Pair:
    """Two arms, A and B, that take turns.

    Attributes
    ----------
    turns : callable
        Called with what A answered when it was opened; returns the turns by metric.
    is_same_work : bool
        False if B may do other work than A.
    """

    a: Arm
    b: Arm
    turns: Callable[[OpenedArm], Mapping[str, Turns]]
    is_same_work: bool = True


@dataclass(frozen=True)
class PairTurns(JsonValues):
    """The blocks of turns of a pair of processes by metric, and the bytes that A and B took."""

    blocks: Mapping[str, list[Block]]
    memory: tuple[int, int]


class TurnRounds(Rounds[Variant, PairTurns]):
    """Rounds of pairs. Every round has servers of its own, and so every pair a memory layout of its own.

    Parameters
    ----------
    variants : iterable
        Names of the pairs.
    pair : callable
        Called with a name and the number of the round; returns the pair.
    start : callable
        Called with the `Arm.server` and the number of the round; starts that server.
    **options
        As `Rounds` takes them.
    """

    def __init__(
        self,
        variants: Iterable[Variant],
        pair: Callable[[Variant, int], Pair],
        start: Callable[[Any, int], Server],
        **options: Any,
    ) -> None:
        super().__init__(variants, self._take_turns, begin=self._in_round, **options)
        self._pair = pair
        self._start = start
        self._fleets: dict[Hashable, Fleet] = {}

    @contextmanager
    def _in_round(self, _: int) -> Iterator[None]:
        try:
            yield
        finally:
            while self._fleets:
                self._fleets.popitem()[1].end_servers()

    def _take_turns(self, variant: Variant, number: int) -> PairTurns:
        pair = self._pair(variant, number)
        fleets = [self._fleet(each.server, number) for each in (pair.a, pair.b)]
        for start in (Fleet.begin, Fleet.wait_until_ready):  # both import at the same time
            for each in fleets:
                start(each)
        with fleets[0].session(pair.a.request) as one, fleets[1].session(pair.b.request) as other:
            a, b = (OpenedArm.from_json(answer) for answer, _ in (one, other))
            if pair.is_same_work:
                check_same_work(pair.b.label, b.work, pair.a.label, a.work)
            found = {name: take_blocks((one[1], other[1]), each, number) for name, each in pair.turns(a).items()}
        return PairTurns(found, (a.memory, b.memory))

    def _fleet(self, server: Hashable, number: int) -> Fleet:
        return self._fleets.setdefault(server, Fleet(lambda _: self._start(server, number)))


def take_blocks(
    ask: tuple[Callable[[Request], Answer], Callable[[Request], Answer]], turns: Turns, number: int
) -> list[Block]:
    """Take the blocks of turns of one pair of processes, which `ask` asks, in the round with this number."""
    blocks: list[Block] = []
    until = time.monotonic() + turns.seconds
    while len(blocks) < turns.min_blocks or time.monotonic() < until:
        taken: tuple[list[float], list[float]] = ([], [])
        for arm in BLOCKS[number % 2]:
            taken[arm].append(float(ask[arm](turns.request)["seconds"]))
        blocks.append((statistics.geometric_mean(taken[0]), statistics.geometric_mean(taken[1])))
    return blocks


def cpus_of_round(number: int, count: int | None = None) -> list[int]:
    """Return `count` CPUs for the turns of a round, by default all that there are.

    The first changes every two rounds, so that each arm begins once on every CPU.
    """
    available = sorted(os.sched_getaffinity(0))
    first = number // 2 % len(available)
    return (available[first:] + available[:first])[:count]
