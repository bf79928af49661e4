"""Which records make up which batch: the same for every strategy."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from etl.arguments import whole_number
from etl.iterators.buckets import sort_in_windows

# The highest word of the Philox counter: 0 orders the epoch, 1 is that of random stages (see `Draw`).
BUCKETS = 2
# What states share whose rest of an epoch is the same records.
IDENTITY = ("records", "shuffle", "seed", "bucket_records", "step_records", "lengths")
# How ranks share a last step that does not divide evenly.
Uneven = Literal["pad", "drop", "allow"]


@dataclass(frozen=True)
class Order:
    """The order of `records` records in each epoch, cut into batches for one of `world_size` ranks.

    A step takes `batch_size` records for every rank from the epoch's order, rank after rank, so that positions count
    records of all ranks and a run saved with two ranks goes on with four. The last step of an epoch shares what is
    left evenly, and `drop_last` leaves that step out. If what is left cannot be divided by `world_size`, `uneven`
    decides: "pad" repeats a record from the start of the epoch on each rank that is one short, "drop" leaves the
    remainder out, and "allow" gives the later ranks one record fewer, which may be none and then is no batch.

    With `bucket_records` windows of so many records are sorted by `lengths`, int64 of shape `(records,)`, so that all
    records of a step are of similar length.
    """

    records: int
    batch_size: int
    shuffle: bool
    seed: int
    drop_last: bool
    rank: int = 0
    world_size: int = 1
    uneven: Uneven = "pad"
    bucket_records: int | None = None
    lengths: np.ndarray | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", whole_number("batch_size", self.batch_size, least=1))
        object.__setattr__(self, "seed", whole_number("seed", self.seed, least=0, below=2**64))
        if self.bucket_records is not None:
            object.__setattr__(self, "bucket_records", whole_number("bucket_records", self.bucket_records, least=1))
        if self.records < 1:
            raise ValueError("there are no records to make batches of; the source is empty")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be at least 0 and below world_size {self.world_size}, not {self.rank}")
        if self.uneven not in get_args(Uneven):
            raise ValueError(f"uneven must be 'pad', 'drop' or 'allow', not {self.uneven!r}")

    @property
    def step_records(self) -> int:
        """Records that all ranks together take in one step."""
        return self.batch_size * self.world_size

    @property
    def batches(self) -> int:
        """Batches of one whole epoch on this rank."""
        whole, left = divmod(self.records, self.step_records)
        fewest = {"pad": 1, "drop": self.world_size, "allow": self.rank + 1}[self.uneven]
        return whole + int(not self.drop_last and left >= fewest)

    @property
    def has_equal_ranks(self) -> bool:
        """Return whether there are several ranks that must all get the same number of batches."""
        return self.world_size > 1 and self.uneven != "allow"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Those of `IDENTITY` that decide this order; JSON values only.

        Batch size and ranks may change: positions count records of all ranks. In buckets, their product may not.
        """
        identity = {name: getattr(self, name) for name in ("records", "shuffle", "seed")}
        if self.bucket_records is not None and self.lengths is not None:
            lengths = f"{zlib.crc32(self.lengths.tobytes()):08x}"
            identity |= {"bucket_records": self.bucket_records, "step_records": self.step_records, "lengths": lengths}
        return identity

    def epoch(self, number: int) -> np.ndarray:
        """The records of epoch `number` in order: int64 of shape `(records,)`, 8 bytes a record.

        Shuffled by a Philox generator keyed with seed and epoch, so that no epoch has to be drawn to know the next.
        """
        order = np.arange(self.records, dtype=np.int64)
        key = np.array([self.seed, number], dtype=np.uint64)
        if self.shuffle:
            np.random.Generator(np.random.Philox(key=key)).shuffle(order)
        if self.bucket_records is not None and self.lengths is not None:
            random = None
            if self.shuffle:
                counter = np.array([0, 0, 0, BUCKETS], dtype=np.uint64)
                random = np.random.Generator(np.random.Philox(key=key, counter=counter))
            sort_in_windows(order, self.lengths, self.step_records, self.bucket_records, random)
        return order

    def plan(self, number: int, position: int) -> Iterator[tuple[np.ndarray, int, int]]:
        """From `position` on, the records of each batch of epoch `number` on this rank, how many of them, at the end,
        are repeated, and the position after the batch.
        """
        order = self.epoch(number)
        while not self.ended(position):
            after = min(position + self.step_records, self.records)
            share, extra = divmod(after - position, self.world_size)
            if self.uneven == "drop":
                extra = 0
            first = position + self.rank * share + min(self.rank, extra)
            numbers = order[first : first + share + int(self.rank < extra)]
            repeated = int(self.uneven == "pad" and 0 < extra <= self.rank)
            if repeated:
                # Not from this step: if little is left, it would be the same record on many ranks.
                numbers = np.append(numbers, order[(self.rank - extra) % self.records])
            if len(numbers):
                yield numbers, repeated, after
            position = after

    def ended(self, position: int) -> bool:
        """Return whether no step of any rank is left at `position`."""
        left = self.records - position
        if self.drop_last:
            return left < self.step_records
        return left < (self.world_size if self.uneven == "drop" else 1)
