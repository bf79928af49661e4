"""What every iterator is, so that the training loop is the same text for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from etl.iterators.sampler import Uneven
from etl.loading.batch_plan import State

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
        """Batches of one whole epoch; of a shard, those of its rank."""

    def __iter__(self) -> Iterator[Any]: ...

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one that is iterated, from its first batch."""

    def state_dict(self) -> State:
        """Where this iterator stands, after the last batch that was handed out; JSON values only."""

    def load_state_dict(self, state: State) -> None:
        """Go on where `state` was taken: the next epoch iterated is the rest of that one."""

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> BatchIterator:
        """Return an iterator over the part of each epoch that belongs to `rank`; it starts at the same epoch.

        All ranks get the same number of batches, unless `uneven` is "allow". Ranks that train together, as under
        `DistributedDataParallel`, wait for each other in every step: if one got a batch more, it would wait for ever.

        Parameters
        ----------
        rank : int
            This process's number, from 0 to `world_size - 1`.
        world_size : int
            Processes that share each epoch; with 1 nothing is repeated or left out.
        uneven : {"pad", "drop", "allow"}
            Sharing of the last step of an epoch, if its `left` records cannot be divided by `world_size`. `drop_last`
            leaves that step out in any case.

            - "pad": each rank gets `ceil(left / world_size)` records. The missing ones, at most `world_size - 1`, are
              repeated from the start of the epoch and marked in `Batch.repeated`.
            - "drop": each rank gets `floor(left / world_size)` records, and the rest is left out.
            - "allow": each record comes once. Later ranks may get one record fewer, and so a batch fewer.

        Raises
        ------
        ValueError
            If there is no such rank, `uneven` is none of the three, or this iterator is a shard already.

        Notes
        -----
        With `on_error="skip"` a batch from which some records are left out is smaller. One of which no record is left
        is replaced, unless `uneven` is "allow": by as many records from the start of the epoch, loaded in the thread
        that asks for the batch, and all marked as repeated. It is a `RecordError` if the epoch has no good record.

        Examples
        --------
        Training may use repeated records like any other. An evaluation leaves them out, so that each counts once:

        >>> for batch in map(backend.put, iterator.shard(rank, world_size)):
        ...     correct = model(batch.features).argmax(1) == batch.labels
        ...     if batch.repeated is not None:
        ...         correct = correct[~batch.repeated]
        ...     hits, records = hits + correct.sum(), records + len(correct)
        """

    def close(self) -> None:
        """End its threads and give back its files; iterating it afterwards is an error."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
