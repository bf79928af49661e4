"""Cells on several ranks: processes that load and compute on their part of the records and CPUs, at the same time."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measuring.processes import Server
from benchmarks.measuring.ranks import Rank, cpus_of_rank, create_meetings, join_group
from benchmarks.measuring.servers_at_once import ServersAtOnce

if TYPE_CHECKING:
    from benchmarks.journal import CellMetrics


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
        with closing(ServersAtOnce(lambda rank: start(tuple(cpus_of_rank(cpus, rank, count))), count)) as servers:
            return servers.sample_all(name, requests)


def join(of_ranks: Sequence[CellMetrics]) -> CellMetrics:
    """Return the metrics of all ranks as one: times of the straggler, and the memory and records of all.

    The straggler spends least time in steps, in which the others wait for it. All end within a fraction of a step.
    """
    straggler = min(of_ranks, key=lambda each: each.epoch.compute.total)
    digest = hashlib.sha256(" ".join(each.digest for each in of_ranks).encode())
    return replace(
        straggler,
        etl=max(each.etl for each in of_ranks),
        epoch=replace(straggler.epoch, samples=sum(each.epoch.samples for each in of_ranks)),
        p99_stall=max(each.p99_stall for each in of_ranks),
        peak_memory=sum(each.peak_memory for each in of_ranks),
        digest=digest.hexdigest(),
        score=sum(each.score for each in of_ranks) / len(of_ranks),
    )
