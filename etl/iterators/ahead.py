"""What iterators have in common that wrap another one and read ahead of what they hand out."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from etl.iterators.iterator import BatchIterator
from etl.loading.batch_plan import State

if TYPE_CHECKING:
    from typing_extensions import Self


class AheadIterator:
    """Stands where the caller is, while the wrapped iterator stands where it has read to.

    A subclass iterates, begins each epoch with `_rewind`, notes `_state` with every batch that it hands out, and calls
    `_stands_with_wrapped` when it has handed out the last.
    """

    async_supported = False

    def __init__(self, iterator: BatchIterator) -> None:
        self._iterator = iterator
        self._epoch = iterator.epoch
        # After the last batch that was handed out.
        self._state = iterator.state_dict()
        # Whether the wrapped iterator has read ahead of that.
        self._read_ahead = False

    @property
    def batch_size(self) -> int:
        """Records a batch; the last of an epoch may have fewer."""
        return self._iterator.batch_size

    @property
    def dtype(self) -> str:
        """The dtype of floating features, by name."""
        return self._iterator.dtype

    @property
    def epoch(self) -> int:
        """The epoch that is, or is next, iterated."""
        return self._epoch

    def __len__(self) -> int:
        """Batches of one whole epoch."""
        return len(self._iterator)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one that is iterated, from its first batch."""
        self._end_epoch()
        self._iterator.set_epoch(epoch)
        self._stands_with_wrapped()

    def state_dict(self) -> State:
        """Where this iterator stands, after the last batch that was handed out, not the last that was loaded."""
        return self._state

    def load_state_dict(self, state: State) -> None:
        """Go on where `state` was taken, by this or by the wrapped kind of iterator."""
        self._end_epoch()
        self._iterator.load_state_dict(state)
        self._stands_with_wrapped()

    def close(self) -> None:
        """End the epoch that runs, and close the wrapped iterator."""
        self._end_epoch()
        self._iterator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end_epoch(self) -> None:
        """Have the epoch that runs say that it was ended, if anybody asks it for another batch."""
        raise NotImplementedError

    def _rewind(self) -> State:
        """Have the wrapped iterator stand where this one does; its state there."""
        if self._read_ahead:
            self._iterator.set_epoch(self._epoch)
        return self._iterator.state_dict()

    def _stands_with_wrapped(self) -> None:
        """Nothing was read ahead: the wrapped iterator's position is this one's."""
        self._epoch = self._iterator.epoch
        self._state = self._iterator.state_dict()
        self._read_ahead = False
