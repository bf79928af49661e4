"""Cells on several ranks: processes that load and compute on their part of the records and CPUs, at the same time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.measuring.fleet import Fleet
from benchmarks.measuring.processes import Server
from benchmarks.measuring.ranks import Rank, cpus_of_rank, create_meetings, join_group


def distributed(rank: Rank, model: Any) -> Any:
    """Return a torch model on a CPU that averages its gradients with those of the other ranks."""
    import torch

    join_group(rank)
    return torch.nn.parallel.DistributedDataParallel(model)


def measure_on_ranks(
    count: int, start: Callable[[tuple[int, ...]], Server], cpus: Sequence[int], name: str, cell: Any
) -> list[Any]:
    """Return the answers of `count` ranks that measure a cell at the same time, each in a fresh process.

    Parameters
    ----------
    start : callable
        Returns a new server for a rank, called with its CPUs.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        meeting = Path(folder) / "meeting"
        create_meetings(meeting, count)
        requests = [{"cell": cell, "rank": Rank(rank, count, str(meeting)).to_json()} for rank in range(count)]
        with closing(Fleet(lambda rank: start(tuple(cpus_of_rank(cpus, rank, count))), count)) as servers:
            return servers.sample_all(name, requests)
