"""The ranks of a comparison: processes that train together, each on its part of the records and of the CPUs.

The environment of another library's loader needs no more than numpy, psutil and xxhash for this module.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.measuring.meeting import Meeting
from etl.measuring.values import JsonValues


@dataclass(frozen=True)
class Rank(JsonValues):
    """A rank, in the process that loads and computes for it.

    Attributes
    ----------
    number, world_size : int
        The rank, and the number of ranks.
    meeting : str or None
        File in which the ranks meet, see `Meeting`. None if this rank runs alone, or while the others do not compute.
    """

    number: int = 0
    world_size: int = 1
    meeting: str | None = None

    @property
    def is_together(self) -> bool:
        """True if the other ranks compute at the same time."""
        return self.meeting is not None

    def meet(self) -> Meeting | None:
        """Open the meeting; None if this rank runs alone. Call it once in a process."""
        return None if self.meeting is None else Meeting(Path(self.meeting), self.number)


def join_group(rank: Rank, device: int | None = None) -> None:
    """Join the process group of torch.distributed, unless this rank runs alone, torch is missing, or it was joined.

    Parameters
    ----------
    rank : Rank
        This rank.
    device : int, optional
        Number of its CUDA device, whose tensors are then exchanged by NCCL. Those of CPUs are by gloo.
    """
    if rank.meeting is None or importlib.util.find_spec("torch") is None:
        return
    import torch

    dist: Any = torch.distributed
    if not dist.is_available() or dist.is_initialized():
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    if device is not None:
        torch.cuda.set_device(device)
    store = dist.FileStore(f"{rank.meeting}.group", rank.world_size)
    kinds = "gloo" if device is None else "cpu:gloo,cuda:nccl"
    dist.init_process_group(kinds, store=store, rank=rank.number, world_size=rank.world_size)
    atexit.register(dist.destroy_process_group)


def device_of_rank(rank: Rank) -> int | None:
    """Return the number of the CUDA device for a step of the user; None if there is not one for each rank.

    Raises no error: the step chooses its device itself.
    """
    if not rank.is_together or importlib.util.find_spec("torch") is None:
        return None
    import torch

    return rank.number if torch.cuda.device_count() >= rank.world_size else None


def whole_steps(records: int, step_records: int) -> int:
    """Return `records`, or fewer, so that every rank has the same number of complete batches.

    Parameters
    ----------
    records : int
        Records that could be measured.
    step_records : int
        Records of all ranks in a step.

    Raises
    ------
    ValueError
        If they are not enough for one step.
    """
    if records < step_records:
        raise ValueError(
            f"one step of all ranks takes {step_records:,} records, and there are {records:,}: compare with fewer "
            "--ranks, or with a smaller --batch-size"
        )
    return records // step_records * step_records
