"""The interface of all iterators, so that one training loop takes any of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from etl.loading.batch_plan import State
from etl.loading.sampler import Uneven

if TYPE_CHECKING:
    from typing_extensions import Self


class BatchIterator(Protocol):
    """Yields the batches of one epoch each time it is iterated.

    After an epoch `epoch` is one higher, so that the next one has another order. An epoch that was left early starts
    again from its first batch. There is one epoch at a time: beginning another ends the one before.

    It is a context manager, which closes it.
    """

    async_supported: bool
    """True if `AsyncIterator` may wrap it; otherwise `async_unsupported_reason` says why not."""

    @property
    def batch_size(self) -> int:
        """Records of a batch; the last of an epoch may have fewer."""

    @property
    def dtype(self) -> str:
        """The dtype of floating features, by name."""

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or is next."""

    def __len__(self) -> int:
        """Return the batches of one whole epoch; of a shard, those of its rank."""

    def __iter__(self) -> Iterator[Any]: ...

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one, from its first batch."""

    def state_dict(self) -> State:
        """Return the position after the last batch that was handed out, as JSON values."""

    def load_state_dict(self, state: State) -> None:
        """Resume at `state`: the next epoch is the rest of the one in which it was taken.

        The state of one of several ranks is that of all of them, if all have been handed as many batches. Any number of
        ranks may load it: each record that was left comes once, besides those that are marked as repeated. If ranks
        have been handed different numbers of batches, the state with the smallest position repeats records, and the one
        with the largest leaves records out. The ranks that load the state decide what `drop_last` and `uneven="drop"`
        leave out.

        Raises `ValueError` if `state` was taken from other records or with another seed, `shuffle` or buckets.
        """

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
        """End its threads and processes and close its files; iterating it afterwards is an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
