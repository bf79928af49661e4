"""Which records make up which batch: the same for every strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from etl.whole_number import whole_number


@dataclass(frozen=True)
class Order:
    """The order of `records` records in each epoch, cut into batches for one of `world_size` ranks.

    A step takes `batch_size` records for every rank from the epoch's order, rank after rank, so that positions count
    records of all ranks and a run saved with two ranks goes on with four. The last step of an epoch shares what is
    left evenly; ranks for which nothing is left then get no batch, and `drop_last` leaves that step out.
    """

    records: int
    batch_size: int
    shuffle: bool
    seed: int
    drop_last: bool
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", whole_number("batch_size", self.batch_size, least=1))
        object.__setattr__(self, "seed", whole_number("seed", self.seed, least=0, below=2**64))
        if self.records < 1:
            raise ValueError("there are no records to make batches of; the source is empty")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be at least 0 and below world_size {self.world_size}, not {self.rank}")

    @property
    def step_records(self) -> int:
        """Records that all ranks together take in one step."""
        return self.batch_size * self.world_size

    @property
    def batches(self) -> int:
        """Batches of one whole epoch on this rank."""
        whole, left = divmod(self.records, self.step_records)
        return whole + int(not self.drop_last and left > self.rank)

    def epoch(self, number: int) -> np.ndarray:
        """The records of epoch `number` in order: int64 of shape `(records,)`, 8 bytes a record.

        Shuffled by a Philox generator keyed with seed and epoch, so that no epoch has to be drawn to know the next.
        """
        order = np.arange(self.records, dtype=np.int64)
        if self.shuffle:
            key = np.array([self.seed, number], dtype=np.uint64)
            np.random.Generator(np.random.Philox(key=key)).shuffle(order)
        return order

    def plan(self, number: int, position: int) -> Iterator[tuple[np.ndarray, int]]:
        """From `position` on, the records of each batch of epoch `number` on this rank, and the position after it."""
        order = self.epoch(number)
        for first, last, after in self._spans(position):
            yield order[first:last], after

    def ended(self, position: int) -> bool:
        """Whether no step of any rank is left at `position`."""
        left = self.records - position
        return left < self.step_records if self.drop_last else left <= 0

    def _spans(self, position: int) -> Iterator[tuple[int, int, int]]:
        while not self.ended(position):
            after = min(position + self.step_records, self.records)
            share, extra = divmod(after - position, self.world_size)
            first = position + self.rank * share + min(self.rank, extra)
            last = first + share + (1 if self.rank < extra else 0)
            if first < last:
                yield first, last, after
            position = after
