"""Ranks that train together, as a report has them, and the one among them that holds the others up."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Ranks that wait for others for a smaller share of the epoch than this have no straggler.
STRAGGLING = 0.02


@dataclass(frozen=True)
class RankResult:
    """One of several ranks that train together. Seconds are per epoch of the whole source, of which it has its part.

    Attributes
    ----------
    rank : int
        The rank.
    cpus : list of int
        CPUs that it was bound to.
    wall_seconds : float
        Wall time of its epoch.
    stall_seconds : float
        Time in which its device waited for a batch.
    host_wait_seconds : float
        Time in which its training loop waited for batches.
    first_batch_seconds : float
        Stall before its first batch; part of its stall.
    compute_seconds : float
        Its training steps, without waiting for other ranks if that is known.
    rank_wait_seconds : float or None
        The part of its steps in which it waited for ranks whose batches came later. None if ranks do not wait for each
        other in every step.
    last_share : float
        Share of the steps that it began later than all other ranks.
    peak_memory_nbytes : int
        Its peak memory, including what it shares with other ranks.
    """

    rank: int
    cpus: list[int]
    wall_seconds: float
    stall_seconds: float
    host_wait_seconds: float
    first_batch_seconds: float
    compute_seconds: float
    rank_wait_seconds: float | None
    last_share: float
    peak_memory_nbytes: int


def describe_straggler(ranks: Sequence[RankResult]) -> str:
    """Return one sentence about the rank that held the others up, and why; empty if there are no others.

    The cause is what it took longer for than the others did on average: its first batch, later batches, or steps.
    """
    if not ranks:
        return ""
    waits = [each.rank_wait_seconds for each in ranks if each.rank_wait_seconds is not None]
    if len(waits) < len(ranks):
        slowest = max(ranks, key=lambda each: each.wall_seconds)
        return f"Ranks did not wait for each other in every step; rank {slowest.rank} was the slowest."
    straggler = ranks[waits.index(min(waits))]
    others = [each for each in ranks if each is not straggler]
    # What the straggler itself waited for others is not its doing.
    waited = (sum(waits) - min(waits)) / len(others) - min(waits)
    share = waited / straggler.wall_seconds
    if share < STRAGGLING:
        each_other = statistics.mean(waits) / straggler.wall_seconds
        return f"No rank held the others up: they waited for each other {each_other:.1%} of the time."
    causes: dict[str, Callable[[RankResult], float]] = {
        "its first batch came later": lambda each: each.first_batch_seconds,
        "it waited longer for batches": lambda each: each.stall_seconds - each.first_batch_seconds,
        "its steps took longer": lambda each: each.compute_seconds,
    }
    excess = {cause: get(straggler) - statistics.mean(get(each) for each in others) for cause, get in causes.items()}
    cause = max(excess, key=lambda each: excess[each])
    why = f", above all because {cause}" if excess[cause] > waited / 4 else ", and no single cause stands out"
    return (
        f"Rank {straggler.rank} was the straggler: it began {straggler.last_share:.0%} of the steps last, and the "
        f"others waited for it {share:.0%} of the time{why}."
    )
