"""Base class of iterators that wrap another iterator and read ahead of the caller."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from etl.iterators.iterator import BatchIterator, call_optional, refuse_next
from etl.iterators.user_loader import UserLoaderIterator, as_iterator
from etl.loading.batch_plan import State
from etl.loading.sampler import Uneven


class AheadIterator(BatchIterator):
    """Keeps the caller's position, while the position of the wrapped iterator runs ahead.

    A subclass begins each epoch with `_rewind`, calls `_align` when the epoch of the wrapped iterator has begun and
    after its last batch, and sets `_state` with every batch that it hands out.
    """

    async_supported = False
    __next__ = refuse_next

    def __init__(self, iterator: BatchIterator | Iterable[Any]) -> None:
        self._iterator = as_iterator(iterator)
        self._epoch = self._iterator.epoch
        # The state after the last batch that was handed out; None if the wrapped iterator cannot resume.
        self._state = self._read_state()
        # True if the wrapped iterator may be ahead of `_state`.
        self._has_read_ahead = False

    @property
    def can_resume(self) -> bool:
        """True if it has a state; iterators over loaders of other libraries have none."""
        return getattr(self._iterator, "can_resume", True)

    @property
    def batch_size(self) -> int:
        return self._iterator.batch_size

    @property
    def dtype(self) -> str | None:
        return self._iterator.dtype

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def rank(self) -> int:
        return self._iterator.rank

    @property
    def world_size(self) -> int:
        return self._iterator.world_size

    @property
    def was_reset(self) -> bool:
        """True if an epoch was chosen below since the last one began, as by `sampler.set_epoch` of a DataLoader."""
        return getattr(self._iterator, "was_reset", False)

    @property
    def user_loader(self) -> UserLoaderIterator | None:
        """The loader of another library whose batches it yields; None if they are those of an iterator."""
        return getattr(self._iterator, "user_loader", None)

    @property
    def order_settings(self) -> State:
        """The settings of the wrapped iterator that decide which records the next loop over this one begins with."""
        below: State = getattr(self._iterator, "order_settings", {})
        if "position" not in below or not self._has_read_ahead or self.was_reset:
            return below
        return {**below, "epoch": self._next_epoch(), "position": 0}

    def __len__(self) -> int:
        return len(self._iterator)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._iterator!r}, epoch {self.epoch})"

    def set_epoch(self, epoch: int) -> None:
        self._end_epoch()
        self._go_to(epoch)
        self._align()

    def settle(self) -> None:
        """Make `epoch` that of the next loop; see `IndexedIterator.settle`. It may have been chosen below, too."""
        if not self._has_read_ahead or self.was_reset:
            call_optional(self._iterator, "settle")
            self._align()

    def forget_skipped(self) -> None:
        """Count none of the records that the epoch has skipped, see `IndexedIterator.forget_skipped`."""
        call_optional(self._iterator, "forget_skipped")

    def state_dict(self) -> State:
        return self._iterator.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: State) -> None:
        self._end_epoch()
        self._iterator.load_state_dict(state)
        self._align()

    def _shard(self, rank: int, world_size: int, uneven: Uneven) -> BatchIterator:
        """Return the shard of the wrapped iterator, at the position of this one."""
        part = self._iterator.shard(rank, world_size, uneven)
        if self._has_read_ahead and not self.was_reset:  # perhaps into the next epoch
            part.set_epoch(self._next_epoch())
        return part

    def close(self) -> None:
        self._end_epoch()
        self._iterator.close()

    def _end_epoch(self) -> None:
        """End the running epoch: asking it for another batch is a `RuntimeError`."""
        raise NotImplementedError

    def _read_state(self) -> State | None:
        """Return the state of the wrapped iterator; None if it cannot resume."""
        return self._iterator.state_dict() if self.can_resume else None

    def _rewind(self) -> None:
        """Move the wrapped iterator to the epoch of the next loop."""
        self.settle()
        if self._has_read_ahead:
            self._go_to(self._next_epoch())

    def _go_to(self, epoch: int) -> None:
        """Move the wrapped iterator, which may have read ahead, to the first batch of `epoch`."""
        if self._has_read_ahead:  # perhaps its last batch, after which it would warn
            self.forget_skipped()
        self._iterator.set_epoch(epoch)

    def _next_epoch(self) -> int:
        """Return the epoch of the next loop: the same again, or the one after it if the last batch was handed out."""
        state: Any = self.state_dict() if self.can_resume else None  # None also of a user's iterator without a state
        is_over = isinstance(state, dict) and state.get("epoch") == self._epoch + 1
        return self._epoch + 1 if is_over else self._epoch

    def _align(self) -> None:
        """Take over the position of the wrapped iterator, which has not read ahead."""
        self._epoch = self._iterator.epoch
        self._state = self._read_state()
        self._has_read_ahead = False
