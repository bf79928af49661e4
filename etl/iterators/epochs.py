"""The part that iterators over numbered records share: epochs, position, resuming and sharding."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from etl.batch import Batch
from etl.dtypes import find_dtype
from etl.iterators.iterator import State
from etl.iterators.order import Order
from etl.whole_number import whole_number

if TYPE_CHECKING:
    from typing_extensions import Self

# What a state must share with the iterator that loads it for the rest of the epoch to be the same records. Batch size
# and ranks may change: positions count records of all ranks.
STATE_IDENTITY = ("records", "shuffle", "seed")


class EpochIterator(ABC):
    """Implements `BatchIterator` over an `Order`; a subclass says how the records of one batch are loaded."""

    async_supported = True

    def __init__(self, order: Order, dtype: str) -> None:
        find_dtype(dtype)
        self._order = order
        self._dtype = dtype
        self._epoch = 0
        self._position = 0
        self._resume_at = 0
        self._running: object | None = None
        self._closed = False

    @abstractmethod
    def _load(self, numbers: np.ndarray) -> Batch:
        """The batch of the records `numbers`, int64 of shape `(batch,)`."""

    @property
    def batch_size(self) -> int:
        """Records a batch; the last of an epoch may have fewer."""
        return self._order.batch_size

    @property
    def dtype(self) -> str:
        """The dtype of floating features, by name."""
        return self._dtype

    @property
    def epoch(self) -> int:
        """The epoch that is, or is next, iterated."""
        return self._epoch

    def __len__(self) -> int:
        """Batches of one whole epoch."""
        return self._order.batches

    def __iter__(self) -> Iterator[Batch]:
        if self._closed:
            raise RuntimeError(f"{type(self).__name__} is closed")
        self._position, self._resume_at = self._resume_at, 0
        self._running = token = object()
        return self._batches(token)

    def _batches(self, token: object) -> Iterator[Batch]:
        for numbers, after in self._order.plan(self._epoch, self._position):
            if self._running is not token:
                raise RuntimeError("this epoch was ended: the iterator was closed or another epoch started")
            batch = self._load(numbers)
            self._position = after
            yield batch
        if self._running is token:
            self._epoch += 1
            self._position = 0

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one that is iterated, from its first batch."""
        self._epoch = whole_number("epoch", epoch, least=0)
        self._position, self._resume_at, self._running = 0, 0, None

    def state_dict(self) -> State:
        """Where this iterator stands, after the last batch that was handed out; JSON values only."""
        ended = self._order.ended(self._position)
        return {
            "epoch": self._epoch + 1 if ended else self._epoch,
            "position": 0 if ended else self._position,
            **{name: getattr(self._order, name) for name in STATE_IDENTITY},
        }

    def load_state_dict(self, state: State) -> None:
        """Go on where `state` was taken: the next epoch iterated is the rest of that one.

        Raises `ValueError` where `state` was taken from other records or with another seed or `shuffle`.
        """
        for name in STATE_IDENTITY:
            mine = getattr(self._order, name)
            if state.get(name) != mine:
                raise ValueError(
                    f"the state was taken with {name}={state.get(name)!r}, this iterator has {name}={mine!r}"
                )
        epoch: Any = state.get("epoch")
        position = state.get("position")
        if not isinstance(position, int) or not 0 <= position <= self._order.records:
            raise ValueError(f"the state has position={position!r}, not one from 0 to {self._order.records} records")
        self.set_epoch(epoch)
        self._position = self._resume_at = position

    def shard(self, rank: int, world_size: int) -> Any:
        """A new iterator over the part of each epoch that belongs to `rank`; it starts at the same epoch."""
        if self._order.world_size != 1:
            raise ValueError(f"this iterator is shard {self._order.rank} of {self._order.world_size} already")
        part = copy.copy(self)
        part._order = dataclasses.replace(self._order, rank=rank, world_size=world_size)
        part.set_epoch(self._epoch)
        return part

    def close(self) -> None:
        """Give back its files; iterating it afterwards is an error."""
        self._closed = True
        self._running = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
