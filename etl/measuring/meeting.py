"""A meeting of processes: they wait for each other, and tell each other a number."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

SLOT = struct.Struct("=qd")
ROUND, VALUE = struct.Struct("=q"), struct.Struct("=d")
# A process looks this often whether the others have come: a fraction of what a message of torch.distributed takes.
LOOK_SECONDS = 2e-5


class Meeting:
    """One process's place in a meeting.

    All processes must call `gather` and `wait` equally often. A process that never comes keeps the others waiting.

    Parameters
    ----------
    path : Path
        A file that `create` has made. It must not have been used before.
    """

    def __init__(self, path: Path, rank: int) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._count = len(self._memory) // (2 * SLOT.size)
        self.rank = rank
        """Number of this process."""
        self._round = 0

    @staticmethod
    def create(path: Path, count: int) -> None:
        """Make the file for a meeting of `count` processes."""
        path.write_bytes(bytes(2 * count * SLOT.size))

    def gather(self, value: float) -> list[float]:
        """Wait for the others; return the values of all, in their order."""
        self.arrive(value)
        return self.collect()

    def arrive(self, value: float) -> None:
        """Tell the others `value`, without waiting for them. `collect` must come before the next call."""
        self._round += 1
        own = self._slots()[self.rank]
        VALUE.pack_into(self._memory, own + ROUND.size, value)
        ROUND.pack_into(self._memory, own, self._round)

    def collect(self) -> list[float]:
        """Wait until the others have arrived, too; return the values of all, in their order."""
        slots = self._slots()
        for slot in slots:
            while ROUND.unpack_from(self._memory, slot)[0] < self._round:
                time.sleep(LOOK_SECONDS)
        return [float(VALUE.unpack_from(self._memory, slot + ROUND.size)[0]) for slot in slots]

    def _slots(self) -> list[int]:
        # Every other round has the same slots: one of them is written again only when all have read it.
        return [SLOT.size * (self._round % 2 * self._count + each) for each in range(self._count)]

    def wait(self) -> None:
        """Wait for the others."""
        self.gather(0.0)
