"""Progress of a rank, in memory that the process that started it can read even after the rank was killed."""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

# Names a file of one slot for each rank.
VARIABLE = "FAIR_ETL_RANK_PROGRESS"
SLOT = struct.Struct("=qqqd")
STARTING, LOADING, TRAINING, LISTENING, ENDED = range(5)
PHRASES = {
    STARTING: "starting",
    LOADING: "loading batch {batch} of epoch {epoch}",
    TRAINING: "training on batch {batch} of epoch {epoch}",
    LISTENING: "running listeners after batch {batch} of epoch {epoch}",
    ENDED: "ending",
}


@dataclass(frozen=True)
class Doing:
    """A state of a rank."""

    phase: int
    epoch: int
    # Number among those that this process has begun in the epoch, from 0.
    batch: int
    # When it began, by the monotonic clock, in seconds. 0 if the rank has not begun anything.
    since: float

    def __str__(self) -> str:
        return PHRASES[self.phase].format(batch=self.batch, epoch=self.epoch)

    @property
    def seconds(self) -> float:
        """Seconds since it began that."""
        return time.monotonic() - self.since


class RankProgress:
    """One rank's slot, to be written, in the memory of those of all ranks."""

    def __init__(self, memory: mmap.mmap | bytearray, rank: int = 0) -> None:
        self._memory = memory
        self._offset = rank * SLOT.size

    def set(self, phase: int, epoch: int = 0, batch: int = 0) -> None:
        """Note what this rank does from now on, and with which batch of the epoch."""
        SLOT.pack_into(self._memory, self._offset, phase, epoch, batch, time.monotonic())

    @property
    def doing(self) -> Doing:
        """The state that was noted last."""
        return Doing(*SLOT.unpack_from(self._memory, self._offset))


def own_progress(rank: int) -> RankProgress:
    """Return the slot of this process: in the file that its parent has named, or in memory of its own."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return RankProgress(bytearray(SLOT.size))
    with Path(path).open("r+b") as file:
        return RankProgress(mmap.mmap(file.fileno(), 0), rank)


def make_progress(path: Path, ranks: int) -> list[RankProgress]:
    """Make the file for `ranks` ranks, and return their slots."""
    path.write_bytes(bytes(SLOT.size * ranks))
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    return [RankProgress(memory, rank) for rank in range(ranks)]
