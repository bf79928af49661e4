"""The rank that is examined, and the other ranks on its machine."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby

import psutil

from etl.runtime.resources import affinity_of
from etl.training.ranks import LAUNCHED, find_ranks


@dataclass(frozen=True)
class Rank:
    """One of the ranks of a training, and the ids of the CPUs that it may use."""

    rank: int
    world_size: int
    cpus: tuple[int, ...]
    # Number of ranks that a launcher such as torchrun has given some of these CPUs, this one included.
    sharing: int = 1

    def __str__(self) -> str:
        shared = f", which {self.sharing} ranks share" if self.sharing > 1 else ""
        return f"rank {self.rank} of {self.world_size}, on CPU{'s'[: len(self.cpus) > 1]} {_ranges(self.cpus)}{shared}"


def find_rank() -> Rank | None:
    """Return the rank that this process is; None if it trains alone. Nothing is sent to other ranks."""
    ranks = find_ranks()
    if ranks.is_alone:
        return None
    cpus = affinity_of(os.cpu_count() or 1)
    overlapping = [each for each in other_ranks() if shares_cpus(each, cpus)]
    return Rank(ranks.rank, ranks.world_size, tuple(cpus), 1 + len(overlapping))


def other_ranks() -> list[psutil.Process]:
    """Return the processes of the other ranks that the launcher of this one, such as torchrun, runs on this machine."""
    if any(name not in os.environ for name in LAUNCHED):
        return []
    own = psutil.Process()
    parent = own.parent()
    siblings = [] if parent is None else parent.children()
    return [each for each in siblings if each.pid != own.pid and _is_of_this_training(each)]


def _is_of_this_training(process: psutil.Process) -> bool:
    try:
        given = process.environ()
    except psutil.Error:
        return False
    return "RANK" in given and all(given.get(name) == os.environ[name] for name in LAUNCHED if name != "RANK")


def shares_cpus(process: psutil.Process, cpus: Collection[int]) -> bool:
    """Return True if a process may use some of these CPUs; False if it has ended."""
    try:
        return not set(process.cpu_affinity()).isdisjoint(cpus)
    except psutil.Error:
        return False


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return sorted numbers as text, such as "0-3, 8"."""
    runs = [
        [number for _, number in run] for _, run in groupby(enumerate(numbers), lambda indexed: indexed[1] - indexed[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
