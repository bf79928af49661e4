"""Strategy `async`: a background thread loads the next batches while the caller computes on this one."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from etl.batch import Batch
from etl.iterators.iterator import BatchIterator, State
from etl.whole_number import whole_number

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncIterator:
    """Wraps any iterator and yields the same batches in the same order, loaded up to `prefetch_size` ahead.

    At most `prefetch_size` batches are finished or being made beside the one the caller holds; 0 is the plain
    iterator. An exception while loading is raised at the batch it belongs to. Leaving the loop ends the thread.
    Raises `ValueError` for an iterator that must not be wrapped, and says why.
    """

    async_supported = False
    async_unsupported_reason = "it is asynchronous already"

    def __init__(self, iterator: BatchIterator, prefetch_size: int = 2, *, workers: str = "thread") -> None:
        self._prefetch_size = whole_number("prefetch_size", prefetch_size, least=0)
        if workers != "thread":
            raise ValueError(f"workers must be 'thread', not {workers!r}")
        if not iterator.async_supported:
            reason = getattr(iterator, "async_unsupported_reason", "its async_supported is False")
            raise ValueError(f"{type(iterator).__name__} must not be wrapped in AsyncIterator: {reason}")
        self._iterator = iterator
        self._epoch = iterator.epoch
        self._state = iterator.state_dict()
        # Whether the wrapped iterator has read ahead of what was handed out.
        self._read_ahead = False
        # Weak, so that the thread ends when the caller leaves its loop and nobody else holds the epoch.
        self._running: weakref.ref[_Epoch] | None = None

    @property
    def batch_size(self) -> int:
        """Records a batch; the last of an epoch may have fewer."""
        return self._iterator.batch_size

    @property
    def dtype(self) -> str:
        """The dtype of floating features, by name."""
        return self._iterator.dtype

    @property
    def prefetch_size(self) -> int:
        """Batches loaded ahead; 0 is off."""
        return self._prefetch_size

    @property
    def epoch(self) -> int:
        """The epoch that is, or is next, iterated."""
        return self._epoch if self._prefetch_size else self._iterator.epoch

    def __len__(self) -> int:
        """Batches of one whole epoch."""
        return len(self._iterator)

    def __iter__(self) -> Iterator[Batch]:
        if self._prefetch_size == 0:
            return iter(self._iterator)
        self._end_epoch()
        if self._read_ahead:
            self._iterator.set_epoch(self._epoch)
        batches = iter(self._iterator)
        self._state = self._iterator.state_dict()
        self._read_ahead = True
        epoch = _Epoch(self, batches)
        self._running = weakref.ref(epoch)
        return epoch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one that is iterated, from its first batch."""
        self._end_epoch()
        self._iterator.set_epoch(epoch)
        self._stands_with_wrapped()

    def state_dict(self) -> State:
        """Where this iterator stands, after the last batch that was handed out, not the last that was loaded."""
        return self._state if self._prefetch_size else self._iterator.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Go on where `state` was taken, by this or by the wrapped kind of iterator."""
        self._end_epoch()
        self._iterator.load_state_dict(state)
        self._stands_with_wrapped()

    def shard(self, rank: int, world_size: int) -> AsyncIterator:
        """A new asynchronous iterator over the part of each epoch that belongs to `rank`; starts at the same epoch."""
        part = self._iterator.shard(rank, world_size)
        part.set_epoch(self.epoch)  # the wrapped iterator may have read ahead into the next one
        return AsyncIterator(part, self._prefetch_size)

    def close(self) -> None:
        """End the thread and close the wrapped iterator."""
        self._end_epoch()
        self._iterator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end_epoch(self) -> None:
        epoch = self._running() if self._running is not None else None
        if epoch is not None:
            epoch.close()
        self._running = None

    def _handed_out(self, state: State) -> None:
        self._state = state

    def _stands_with_wrapped(self) -> None:
        """Nothing was read ahead: the wrapped iterator's position is this one's."""
        self._epoch = self._iterator.epoch
        self._state = self._iterator.state_dict()
        self._read_ahead = False


@dataclass(frozen=True)
class _Loaded:
    batch: Batch
    state: State


@dataclass(frozen=True)
class _Failed:
    error: BaseException


class _End:
    """Says that the epoch is used up."""


class _Channel:
    """Hands batches from the thread that loads them to the one that uses them, at most `size` at a time."""

    def __init__(self, size: int) -> None:
        self._room = size
        self._items: deque[_Loaded | _Failed | _End] = deque()
        # Re-entrant, because the collector may stop the channel in a thread that is inside it.
        self._changed = threading.Condition(threading.RLock())
        self.stopped = False

    def wait_for_room(self) -> bool:
        """Wait until another batch may be begun; False where none is wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._room > 0 or self.stopped)
            self._room -= 1
            return not self.stopped

    def put(self, item: _Loaded | _Failed | _End) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def take(self) -> _Loaded | _Failed | _End:
        """Wait for the next item. Its place is free from then on: the next batch is begun while this one is used."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self.stopped)
            if self.stopped:
                return _Failed(RuntimeError("this epoch was ended: the iterator was closed or another epoch started"))
            self._room += 1
            self._changed.notify_all()
            return self._items.popleft()

    def stop(self) -> None:
        with self._changed:
            self.stopped = True
            self._items.clear()
            self._changed.notify_all()


class _Epoch(Iterator[Batch]):
    """One epoch in progress. The thread holds the channel and not this object, so that this can be collected."""

    def __init__(self, owner: AsyncIterator, batches: Iterator[Batch]) -> None:
        self._owner = owner
        self._channel = _Channel(owner.prefetch_size)
        thread = threading.Thread(
            target=_load_ahead, args=(owner._iterator, batches, self._channel), name="etl-prefetch", daemon=True
        )
        # Runs when the caller drops the epoch, and at the latest before the interpreter goes away.
        self._finalizer = weakref.finalize(self, _stop_thread, self._channel, thread)
        self._ended = False
        thread.start()

    def __next__(self) -> Batch:
        if self._ended:
            raise StopIteration
        item = self._channel.take()
        if isinstance(item, _Loaded):
            self._owner._handed_out(item.state)
            return item.batch
        self._ended = True
        self._finalizer()
        if isinstance(item, _Failed):
            try:
                raise item.error
            finally:  # its traceback holds this frame: what the caller had would live until the collector runs
                del item
        self._owner._stands_with_wrapped()
        raise StopIteration

    def close(self) -> None:
        """Stop loading and wait for the thread; at most the batch it is making is finished first."""
        self._finalizer()


def _load_ahead(iterator: BatchIterator, batches: Iterator[Batch], channel: _Channel) -> None:
    try:
        while channel.wait_for_room():
            batch = next(batches, None)
            if batch is None:
                channel.put(_End())
                return
            channel.put(_Loaded(batch, iterator.state_dict()))
            del batch  # or it would live until the next one is finished
    except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits for this batch
        channel.put(_Failed(error))


def _stop_thread(channel: _Channel, thread: threading.Thread) -> None:
    channel.stop()
    # The collector may run this in the loading thread itself, which then ends by its own.
    if thread is not threading.current_thread():
        thread.join()
