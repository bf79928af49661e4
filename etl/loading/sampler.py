"""The choice of records for each batch, the same for every strategy."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from etl.arguments import whole_number

# The highest word of the Philox counter that shuffles buckets; 0 shuffles the epoch, 1 seeds random stages (see
# `RecordRng`).
BUCKETS = 2
# Entries of a state that must be equal for an iterator to resume there: they decide the order of the records.
IDENTITY = ("records", "shuffle", "seed", "bucket_records", "step_records", "lengths")
# How ranks share a last step that cannot be divided evenly.
Uneven = Literal["pad", "drop", "allow"]


@dataclass(frozen=True)
class Sampler:
    """The order of the records in each epoch, divided into batches for one of `world_size` ranks.

    A step takes `batch_size` records for every rank from the epoch's order, rank after rank. Positions therefore count
    records of all ranks, and a run that was saved with two ranks can be resumed with four.

    Parameters
    ----------
    seed : int
        Seeds the order, together with the epoch; at least 0 and below 2**64.
    uneven : {"pad", "drop", "allow"}
        Sharing of a last step whose records cannot be divided by `world_size`: "pad" repeats a record from the start of
        the epoch on each rank that is one short, "drop" leaves the remainder out, and "allow" gives later ranks one
        record fewer, and no batch if none is left for them.
    lengths : int64 array of shape (records,), optional
        The lengths to sort by.

    Raises
    ------
    ValueError
        If there are no records, a number is out of bounds, or `uneven` is unknown.
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
    lengths: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", whole_number("batch_size", self.batch_size, least=1))
        object.__setattr__(self, "seed", whole_number("seed", self.seed, least=0, below=2**64))
        if self.bucket_records is not None:
            object.__setattr__(self, "bucket_records", whole_number("bucket_records", self.bucket_records, least=1))
        object.__setattr__(self, "world_size", whole_number("world_size", self.world_size, least=1))
        object.__setattr__(self, "rank", whole_number("rank", self.rank, least=0))
        if self.records < 1:
            raise ValueError("there are no records to make batches of; the source is empty")
        if self.rank >= self.world_size:
            raise ValueError(f"rank must be at least 0 and below world_size {self.world_size}, not {self.rank}")
        if self.uneven not in get_args(Uneven):
            raise ValueError(f"uneven must be 'pad', 'drop' or 'allow', not {self.uneven!r}")

    @property
    def step_records(self) -> int:
        """Records that all ranks together take in one step."""
        return self.batch_size * self.world_size

    @property
    def epoch_batches(self) -> int:
        """Batches of one whole epoch on this rank."""
        whole, left = divmod(self.records, self.step_records)
        return whole + int(not self.drop_last and left >= self._least_for_own)

    @property
    def has_equal_ranks(self) -> bool:
        """True if there are several ranks that must all get the same number of batches."""
        return self.world_size > 1 and self.uneven != "allow"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The entries of `IDENTITY` that this order depends on, as JSON values.

        A run may be resumed with another batch size and number of ranks, because positions count records of all ranks.
        With buckets, their product must stay the same.
        """
        identity = {name: getattr(self, name) for name in ("records", "shuffle", "seed")}
        if self.bucket_records is not None and self.lengths is not None:
            lengths = f"{zlib.crc32(self.lengths.tobytes()):08x}"
            identity |= {"bucket_records": self.bucket_records, "step_records": self.step_records, "lengths": lengths}
        return identity

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Return the records of an epoch in order, as an int64 array of shape `(records,)`.

        A Philox generator keyed with seed and epoch shuffles them, so that no epoch depends on an earlier one.
        """
        order = np.arange(self.records, dtype=np.int64)
        key = np.array([self.seed, epoch], dtype=np.uint64)
        if self.shuffle:
            np.random.Generator(np.random.Philox(key=key)).shuffle(order)
        if self.bucket_records is not None and self.lengths is not None:
            random = None
            if self.shuffle:
                counter = np.array([0, 0, 0, BUCKETS], dtype=np.uint64)
                random = np.random.Generator(np.random.Philox(key=key, counter=counter))
            _sort_in_windows(order, self.lengths, self.step_records, self.bucket_records, random)
        return order

    def batches(self, epoch: int, position: int) -> Iterator[tuple[np.ndarray, int, int]]:
        """Yield `(indices, repeated, after)` for each batch of this rank, from `position` of an epoch on.

        `indices` are the records (int64). The last `repeated` of them are repeated records. `after` is the position
        after the batch.
        """
        order = self.order(epoch)
        records, rank, world_size, uneven = self.records, self.rank, self.world_size, self.uneven
        step, least = self.step_records, self._least_left
        while records - position >= least:
            after = min(position + step, records)
            share, extra = divmod(after - position, world_size)
            if uneven == "drop":
                extra = 0
            first = position + rank * share + min(rank, extra)
            indices = order[first : first + share + int(rank < extra)]
            repeated = int(uneven == "pad" and 0 < extra <= rank)
            if repeated:
                # From the start of the epoch: a small last step would repeat the same record on many ranks.
                indices = np.append(indices, order[(rank - extra) % records])
            if len(indices):
                yield indices, repeated, after
            position = after

    def ended(self, position: int) -> bool:
        """Return whether no rank has another step at `position`."""
        return self.records - position < self._least_left

    def is_over(self, position: int) -> bool:
        """Return whether this rank has no other batch at `position`; with "allow", others may have one."""
        return self.records - position < (self.step_records if self.drop_last else self._least_for_own)

    @property
    def _least_left(self) -> int:
        """Records that must be left for another step."""
        if self.drop_last:
            return self.step_records
        return self.world_size if self.uneven == "drop" else 1

    @property
    def _least_for_own(self) -> int:
        """Records that must be left for an incomplete step with a batch for this rank."""
        return {"pad": 1, "drop": self.world_size, "allow": self.rank + 1}[self.uneven]


def _sort_in_windows(
    order: NDArray[np.int64],
    lengths: NDArray[np.int64],
    step_records: int,
    window_records: int,
    random: np.random.Generator | None,
) -> None:
    """Sort windows of `order` (record indices) in place by length, then shuffle the steps within each window.

    A window has as many whole steps as fit into `window_records`, at least one. The records after the last whole step
    are not sorted, so that length does not decide which records come last. Without `random`, the steps of a window stay
    sorted.
    """
    whole = len(order) - len(order) % step_records
    size = max(1, window_records // step_records) * step_records
    for first in range(0, whole, size):
        window = order[first : min(first + size, whole)]
        steps = window[np.argsort(lengths[window], kind="stable")].reshape(-1, step_records)
        if random is not None:
            random.shuffle(steps)
        window[:] = steps.reshape(-1)
