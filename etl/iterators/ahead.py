"""Base class of iterators that wrap another iterator and read ahead of the caller."""

from __future__ import annotations

from etl.iterators.iterator import BatchIterator
from etl.loading.batch_plan import State


class AheadIterator(BatchIterator):
    """Keeps the caller's position, while the position of the wrapped iterator runs ahead.

    A subclass begins each epoch with `_rewind`, sets `_state` with every batch that it hands out, and calls `_align`
    after the last one.
    """

    async_supported = False

    def __init__(self, iterator: BatchIterator) -> None:
        self._iterator = iterator
        self._epoch = iterator.epoch
        # The state after the last batch that was handed out.
        self._state = iterator.state_dict()
        # True if the wrapped iterator may be ahead of `_state`.
        self._has_read_ahead = False

    @property
    def batch_size(self) -> int:
        return self._iterator.batch_size

    @property
    def dtype(self) -> str | None:
        return self._iterator.dtype

    @property
    def epoch(self) -> int:
        return self._epoch

    def __len__(self) -> int:
        return len(self._iterator)

    def set_epoch(self, epoch: int) -> None:
        self._end_epoch()
        self._iterator.set_epoch(epoch)
        self._align()

    def state_dict(self) -> State:
        return self._state

    def load_state_dict(self, state: State) -> None:
        self._end_epoch()
        self._iterator.load_state_dict(state)
        self._align()

    def close(self) -> None:
        self._end_epoch()
        self._iterator.close()

    def _end_epoch(self) -> None:
        """End the running epoch: asking it for another batch is a `RuntimeError`."""
        raise NotImplementedError

    def _rewind(self) -> State:
        """Move the wrapped iterator to the position of this one, and return its state there."""
        if self._has_read_ahead:
            self._iterator.set_epoch(self._epoch)
        return self._iterator.state_dict()

    def _align(self) -> None:
        """Take over the position of the wrapped iterator, which has not read ahead."""
        self._epoch = self._iterator.epoch
        self._state = self._iterator.state_dict()
        self._has_read_ahead = False
