"""What every iterator is, so that the training loop is the same text for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from etl.loading.loading import State

if TYPE_CHECKING:
    from typing_extensions import Self


class BatchIterator(Protocol):
    """Yields the batches of one epoch each time it is iterated.

    An epoch that was used up moves `epoch` on by one, so that the next has an order of its own; one left early starts
    again from its first batch. One epoch at a time: starting another ends the one before.
    """

    async_supported: bool
    """Whether `AsyncIterator` may wrap it; if not, `async_unsupported_reason` says why."""

    @property
    def batch_size(self) -> int: ...

    @property
    def dtype(self) -> str:
        """The dtype of floating features, by name."""

    @property
    def epoch(self) -> int: ...

    def __len__(self) -> int:
        """Batches of one whole epoch."""

    def __iter__(self) -> Iterator[Any]: ...

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one that is iterated, from its first batch."""

    def state_dict(self) -> State:
        """Where this iterator stands, after the last batch that was handed out; JSON values only."""

    def load_state_dict(self, state: State) -> None:
        """Go on where `state` was taken: the next epoch iterated is the rest of that one."""

    def shard(self, rank: int, world_size: int) -> BatchIterator:
        """A new iterator over the part of each epoch that belongs to `rank`."""

    def close(self) -> None:
        """End its threads and give back its files; iterating it afterwards is an error."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
