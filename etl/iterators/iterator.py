"""The interface of all iterators, so that one training loop takes any of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from etl.loading.batch_plan import State
from etl.loading.sampler import Uneven

if TYPE_CHECKING:
    from typing import Self


class BatchIterator(Protocol):
    """Yields the batches of one epoch each time it is iterated.

    A finished epoch increases `epoch` by one, so that the next epoch has another order. After a loop that was left
    early, the next loop starts the same epoch again, from its first batch; but not if the loop took the last batch,
    whether it asked for another or not. Only one epoch runs at a time: beginning another ends the one before.

    As a context manager it closes itself on exit.
    """

    async_supported: bool
    """True if `AsyncIterator` may wrap it; otherwise `async_unsupported_reason` says why not."""

    @property
    def batch_size(self) -> int:
        """Records in a batch; the last batch of an epoch may have fewer."""

    @property
    def dtype(self) -> str | None:
        """The dtype of floating features, by name; None if each array keeps its own."""

    @property
    def epoch(self) -> int:
        """The running epoch; between epochs, the next one."""

    @property
    def rank(self) -> int:
        """The rank whose part of each epoch this is; 0 unless it is a shard."""
        return 0

    @property
    def world_size(self) -> int:
        """Ranks that share each epoch; 1 unless this is a shard."""
        return 1

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch; for a shard, those of its rank."""

    def __iter__(self) -> Iterator[Any]: ...

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop start at the first batch of `epoch`."""

    def state_dict(self) -> State:
        """Return the position after the last batch that was handed out, as JSON values."""

    def load_state_dict(self, state: State) -> None:
        """Resume at `state`: the next loop yields the rest of the epoch in which `state` was taken.

        With several ranks, the state of any rank will do, if all ranks have received the same number of batches. Any
        number of ranks may load it: each remaining record comes once, besides those that are marked as repeated. If
        ranks have received different numbers of batches, the state with the smallest position repeats records, and the
        state with the largest leaves records out. What `drop_last` and `uneven="drop"` leave out depends on the ranks
        that resume, not on those that saved.

        Raises `ValueError` if `state` was taken with other records, as far as names, labels and samples of the content
        show, or with another seed, `shuffle` or buckets.
        """

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> BatchIterator:
        """Return an iterator over the part of each epoch that belongs to `rank`. It starts at the same epoch, or at the
        state that was loaded.

        All ranks get the same number of batches, unless `uneven` is "allow". Ranks that train together, as under
        `DistributedDataParallel`, wait for each other in every step: if one got a batch more, it would wait forever.

        Parameters
        ----------
        rank : int
            This process's rank, from 0 to `world_size - 1`.
        world_size : int
            Processes that share each epoch. With 1, nothing is repeated or left out.
        uneven : {"pad", "drop", "allow"}
            Sharing of the last step of an epoch, if its `left` records cannot be divided by `world_size`. With
            `drop_last`, that step is always left out.

            - "pad": each rank gets `ceil(left / world_size)` records. The missing ones, at most `world_size - 1`, are
              repeated from the start of the epoch and marked in `Batch.repeated`.
            - "drop": each rank gets `floor(left / world_size)` records, and the rest is left out.
            - "allow": each record comes once. Later ranks may get one record fewer, and so a batch fewer.

        Raises
        ------
        ValueError
            If there is no such rank, `uneven` is unknown, or this iterator is a shard already.

        Notes
        -----
        With `on_error="skip"`, a batch is smaller by the records that it skips. If it skips all of them, it is replaced
        unless `uneven` is "allow": by as many records from the start of the epoch, all marked as repeated. Also with
        worker processes, this process loads them. If no record of the epoch can be loaded, a `RecordError` is raised.

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
        """End the iterator's threads and processes and close its files. Iterating it afterwards is a `RuntimeError`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def refuse_next(iterator: BatchIterator) -> NoReturn:
    """Raise the error for `next(iterator)`."""
    raise TypeError(
        f"{type(iterator).__name__} begins an epoch each time it is iterated: write `for batch in iterator`, or "
        "`next(iter(iterator))` for the first batch"
    )


def close_epoch(epoch: Iterator[Any], iterator: Any) -> None:
    """Close `epoch`, which `iter(iterator)` returned, if it has a `close`.

    Otherwise it would go on loading as long as anything refers to it, such as the traceback of an error. An iterator
    that returns itself from `iter` stays open for the next epoch.
    """
    if epoch is not iterator:
        call_optional(epoch, "close")


def call_optional(thing: object, method: str, *arguments: Any) -> None:
    """Call a method that `thing` may have: a user's iterator, loader or listener needs few of those of etl."""
    function = getattr(thing, method, None)
    if function is not None:
        function(*arguments)
