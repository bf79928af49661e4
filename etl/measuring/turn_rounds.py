"""Rounds of turns: arms alternate with a base, A B B A, so that noise of the machine affects both alike."""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .fleet import Fleet
from .processes import MeasurementError, Server
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
        Its name, with that of its work, in the error if it does other work than the base.
    does_same_work : bool
        False if its work may differ.
    """

    server: Hashable
    request: Request
    label: str
    does_same_work: bool = True


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
class Contest:
    """Arms that do the same work, each in turns with the same process of the base.

    Attributes
    ----------
    base : Arm
        A of every pair.
    rivals : mapping of str to Arm
        B of each pair.
    turns : callable
        Called with what the base answered; returns the turns of each metric.
    keeps_failures : bool
        True if a rival that fails is a result, too; otherwise its error is raised, as that of the base always is.
    """

    base: Arm
    rivals: Mapping[str, Arm]
    turns: Callable[[OpenedArm], Mapping[str, Turns]]
    keeps_failures: bool = False


@dataclass(frozen=True)
class PairTurns(JsonValues):
    """A rival and the base in one pair of processes.

    Attributes
    ----------
    rival : str
        Key of `Contest.rivals`.
    blocks : mapping of str to list of (float, float)
        Blocks of turns, by metric.
    memory : list of int
        Bytes that the base and the rival took.
    failure : str
        Why measuring failed; empty if it did not.
    """

    rival: str
    blocks: Mapping[str, list[Block]]
    memory: list[int]
    failure: str = ""


@dataclass(frozen=True)
class ContestTurns(JsonValues):
    """All pairs of a contest in one round."""

    pairs: list[PairTurns]


class TurnRounds(Rounds[Variant, ContestTurns]):
    """Rounds of contests. Every round has servers of its own, and so every pair a memory layout of its own.

    Parameters
    ----------
    contests : iterable
        Names of the contests.
    contest : callable
        Called with a name and the number of the round; returns the contest.
    start : callable
        Called with the `Arm.server` and the number of the round; starts that server.
    servers : iterable
        The `Arm.server` of those that start with the round, at the same time; others start when they are needed.
    taken : mapping, optional
        Results by name and round, of an earlier call.
    note : callable, optional
        Called with name and round, and the result.
    """

    def __init__(
        self,
        contests: Iterable[Variant],
        contest: Callable[[Variant, int], Contest],
        start: Callable[[Any, int], Server],
        servers: Iterable[Hashable],
        *,
        taken: Mapping[Variant, Mapping[int, ContestTurns]] | None = None,
        note: Callable[[tuple[Variant, int], ContestTurns], object] = lambda *_: None,
    ) -> None:
        super().__init__(contests, self._take_contest, taken=taken, begin=self._in_round, on_failure=_raise)
        self._contest = contest
        self._start = start
        self._servers = list(servers)
        self._note = note
        self._fleets: dict[Hashable, Fleet] = {}

    @contextmanager
    def _in_round(self, number: int) -> Iterator[None]:
        try:
            for start in (Fleet.begin, Fleet.wait_until_ready):
                for server in self._servers:
                    start(self._fleet(server, number))
            yield
        finally:
            while self._fleets:
                self._fleets.popitem()[1].end_servers()

    def _fleet(self, server: Hashable, number: int) -> Fleet:
        return self._fleets.setdefault(server, Fleet(lambda _: self._start(server, number)))

    def _take_contest(self, name: Variant, number: int) -> ContestTurns:
        contest = self._contest(name, number)
        rivals = random.Random(number).sample(list(contest.rivals), len(contest.rivals))
        with self._fleet(contest.base.server, number).session(contest.base.request) as base:
            result = ContestTurns([self._take_pair(contest, base, each, number) for each in rivals])
        self._note((name, number), result)
        return result

    def _take_pair(
        self, contest: Contest, base: tuple[Answer, Callable[[Request], Answer]], name: str, number: int
    ) -> PairTurns:
        rival = contest.rivals[name]
        try:
            with self._fleet(rival.server, number).session(rival.request) as other:
                a, b = (OpenedArm.from_json(answer) for answer, _ in (base, other))
                if rival.does_same_work:
                    check_same_work(rival.label, b.work, contest.base.label, a.work)
                blocks = {
                    metric: take_blocks((base[1], other[1]), turns, number)
                    for metric, turns in contest.turns(a).items()
                }
        except MeasurementError as error:
            if not contest.keeps_failures:
                raise
            return PairTurns(name, {}, [], str(error))
        return PairTurns(name, blocks, [a.memory, b.memory])


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


def _raise(_: object, error: MeasurementError) -> None:
    raise error
