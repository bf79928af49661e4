"""Ranks: processes that are measured while they train together, each on its part of the records and of the CPUs."""

from __future__ import annotations

import atexit
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .meeting import Meeting
from .values import JsonValues


@dataclass(frozen=True)
class Rank(JsonValues):
    """A rank, in the process that loads and computes for it.

    Attributes
    ----------
    meeting : str or None
        File in which the ranks meet, see `Meeting`. None if this rank runs alone, or while the others do not compute.
    cpus : list of int
        CPUs that it loads and computes on; empty for those that its process has.
    """

    number: int = 0
    world_size: int = 1
    meeting: str | None = None
    cpus: list[int] = field(default_factory=list)

    @property
    def is_together(self) -> bool:
        """True if the other ranks compute at the same time."""
        return self.meeting is not None

    def meet(self) -> Meeting | None:
        """Open the meeting; None if this rank runs alone. Call it once in a process."""
        return None if self.meeting is None else Meeting(Path(self.meeting), self.number)

    def meet_devices(self) -> Meeting | None:
        """Open the meeting of simulated devices; None if this rank runs alone. Call it once in a process."""
        return None if self.meeting is None else Meeting(device_meeting(self.meeting), self.number)


def create_meetings(path: Path, ranks: int) -> None:
    """Make the files in which `ranks` ranks and their simulated devices meet."""
    Meeting.create(path, ranks)
    Meeting.create(device_meeting(str(path)), ranks)


def device_meeting(meeting: str) -> Path:
    """Return the file in which simulated devices meet, beside that of their ranks."""
    return Path(f"{meeting}.devices")


def join_group(rank: Rank) -> None:
    """Join the process group of torch.distributed, unless this rank runs alone, torch is missing, or it was joined.

    Tensors on CUDA devices are exchanged by NCCL, and those on CPUs by gloo.
    """
    if rank.meeting is None or importlib.util.find_spec("torch") is None:
        return
    import torch

    dist: Any = torch.distributed
    if not dist.is_available() or dist.is_initialized():
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    store = dist.FileStore(f"{rank.meeting}.group", rank.world_size)
    kinds = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(kinds, store=store, rank=rank.number, world_size=rank.world_size)
    atexit.register(dist.destroy_process_group)


def cpus_of_rank(cpus: Sequence[int], rank: int, ranks: int) -> list[int]:
    """Return those of `cpus` that a rank computes and loads on; one that it shares if there are fewer than ranks."""
    first, end = len(cpus) * rank // ranks, len(cpus) * (rank + 1) // ranks
    return list(cpus[first : max(end, first + 1)])
