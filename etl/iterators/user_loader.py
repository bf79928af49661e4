"""Any iterable of batches as an iterator: a torch DataLoader, another library's loader, a list."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from inspect import isgenerator
from numbers import Integral
from typing import Any

from etl.arguments import describe, whole_number
from etl.iterators.iterator import BatchIterator, call_optional, close_epoch
from etl.loading.batch_plan import State
from etl.loading.sampler import Uneven
from etl.stages.dtypes import DTYPES

# The parts of a DataLoader that may choose records by the number of the epoch.
EPOCH_PARTS = ("sampler", "batch_sampler", "batch_sampler.sampler", "dataset")


def as_iterator(batches: Any) -> BatchIterator:
    """Return `batches` if it is an iterator of etl, which has an `async_supported`, and otherwise an iterator over it.

    Raises `TypeError` if it cannot be iterated.
    """
    if hasattr(batches, "async_supported"):
        found: BatchIterator = batches
        return found
    return UserLoaderIterator(batches)


def is_exhausted_by_iterating(batches: Any) -> bool:
    """Return True if `batches` is a generator or another iterator of Python's own, which cannot begin again.

    The class of any other iterator may begin again when `iter` is called.
    """
    return isinstance(batches, Iterator) and type(batches).__module__ in ("builtins", "itertools")


class UserLoaderIterator(BatchIterator):
    """Yields the batches of any iterable, unchanged, and numbers its epochs.

    The number of each epoch is passed to `set_epoch` of the iterable. If it has none, it is passed to the `set_epoch`
    of its sampler, batch sampler and data set, as of a DataLoader with a `DistributedSampler`. The first number is the
    `epoch` of one of these, or 0. As with every iterator, a finished epoch increases the number.

    Raises `TypeError` if `batches` cannot be iterated.
    """

    async_supported = True
    can_resume = False

    def __init__(self, batches: Iterable[Any]) -> None:
        if isinstance(batches, (str, bytes)) or not (isinstance(batches, Iterable) or hasattr(batches, "__getitem__")):  # type: ignore[unreachable]
            raise TypeError(
                f"batches come from an iterable, such as an iterator of etl or a DataLoader, not {describe(batches)}"
            )
        self._batches = batches
        self._name = type(batches).__name__
        self._settable = _with_set_epoch(batches)
        self._epoch = 0
        self._closed = False

    @property
    def batch_size(self) -> int:
        size = getattr(self._batches, "batch_size", None)
        if not isinstance(size, Integral):
            raise AttributeError(f"a {self._name} does not tell its batch_size")
        return int(size)

    @property
    def dtype(self) -> str:
        dtype = getattr(self._batches, "dtype", None)
        if not (isinstance(dtype, str) and dtype in DTYPES):
            raise AttributeError(f"a {self._name} does not tell its dtype")
        return dtype

    @property
    def epoch(self) -> int:
        reported = (getattr(each, "epoch", None) for each in (self._batches, *self._settable))
        return next((int(epoch) for epoch in reported if isinstance(epoch, Integral)), self._epoch)

    @property
    def was_reset(self) -> bool:
        """True if its loader was told another epoch than from here, as by `sampler.set_epoch`."""
        return self.epoch != self._epoch

    @property
    def rank(self) -> int:
        return self._part()[0]

    @property
    def world_size(self) -> int:
        return self._part()[1]

    @property
    def user_loader(self) -> UserLoaderIterator:
        """The loader whose batches it yields, as in an iterator that loads them ahead: itself."""
        return self

    @property
    def undivided(self) -> str | None:
        """The records that any rank gets, and how to divide them, if these are certainly all; otherwise None."""
        data, own = sys.modules.get("torch.utils.data"), sys.modules.get("etl.iterators.torch_dataset")
        loader: Any = self._batches
        if data is None:
            return None
        view = loader.dataset if type(loader) is data.DataLoader else loader  # a subclass may divide it
        if own is not None and isinstance(view, own.TorchDataset):
            remedy = "make it of iterator.shard(rank, world_size), or pass the iterator itself"
            is_whole = view.world_size == 1
        else:
            remedy = "give it sampler=torch.utils.data.DistributedSampler(dataset)"
            is_whole = isinstance(loader, data.DataLoader) and (
                type(loader.sampler) in (data.RandomSampler, data.SequentialSampler)
                and type(loader.batch_sampler) in (data.BatchSampler, type(None))
            )
        return f"all records of this {self._name}: {remedy}" if is_whole else None

    @property
    def order_settings(self) -> State:
        """Settings of its `TorchDataset` or `DistributedSampler` that decide which records come next, if it has one."""
        data = sys.modules.get("torch.utils.data")
        for part in _parts(self._batches):
            if isinstance(settings := getattr(part, "order_settings", None), dict):
                return settings
            if data is not None and isinstance(part, data.DistributedSampler):
                settings = {name: getattr(part, name) for name in ("shuffle", "seed", "drop_last")}
                return {"records": len(part.dataset), **settings, "epoch": self.epoch}
        return {}

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type] # a TypeError if it has none

    def __iter__(self) -> Iterator[Any]:
        return self._run(self.begin())

    def _run(self, batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        self.advance()

    def begin(self) -> Iterator[Any]:
        """Begin an epoch. A caller that reads ahead calls `advance` when its own caller has reached the end."""
        if self._closed:
            raise RuntimeError(f"the iterator over a {self._name} is closed")
        self.set_epoch(self.epoch)
        # Here, not in the generator: a DataLoader starts its workers in the thread that calls `iter`.
        return self._hand_on(iter(self._batches))

    def _hand_on(self, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            for batch in batches:
                yield batch
                del batch  # its memory can be reused as soon as the caller drops it
        finally:
            close_epoch(batches, self._batches)

    def advance(self) -> None:
        """Go on to the next epoch, unless its loader was told another meanwhile."""
        if not self.was_reset:
            self.set_epoch(self._epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = whole_number("epoch", epoch, least=0)
        for each in self._settable:
            each.set_epoch(self._epoch)

    def state_dict(self) -> State:
        raise TypeError(self._no_state())

    def load_state_dict(self, state: State) -> None:  # noqa: ARG002
        raise TypeError(self._no_state())

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> BatchIterator:  # noqa: ARG002
        raise TypeError(
            f"a {self._name} cannot be divided among ranks from outside: make it with the part of this rank, for "
            "example with torch's DistributedSampler"
        )

    def close(self) -> None:
        self._closed = True
        # A generator in which a thread still waits cannot be closed: it is when nothing refers to it any more.
        if not (isgenerator(self._batches) and self._batches.gi_running):
            call_optional(self._batches, "close")

    def _part(self) -> tuple[int, int]:
        """Return the rank and the number of ranks of a sampler or data set that tells them, such as a
        `DistributedSampler`.
        """
        for each in _parts(self._batches):
            rank = getattr(each, "rank", None)
            for name in ("num_replicas", "world_size"):
                world_size = getattr(each, name, None)
                if isinstance(rank, Integral) and isinstance(world_size, Integral):
                    return int(rank), int(world_size)
        return 0, 1

    def _no_state(self) -> str:
        return (
            f"the position in an epoch of a {self._name} is unknown: save the number of the epoch, and call "
            "set_epoch(number) to begin it again; RawIterator and PresavedIterator resume at any batch"
        )


def _with_set_epoch(batches: Any) -> list[Any]:
    """Return `batches` if it has a `set_epoch`, and otherwise those of its parts that have one."""
    if callable(getattr(batches, "set_epoch", None)):
        return [batches]
    return [part for part in _parts(batches)[1:] if callable(getattr(part, "set_epoch", None))]


def _parts(batches: Any) -> list[Any]:
    """Return `batches` and those parts of it that may choose records, each once."""
    found = [batches]
    for path in EPOCH_PARTS:
        part = batches
        for name in path.split("."):
            part = getattr(part, name, None)
        if part is not None and not any(part is each for each in found):
            found.append(part)
    return found
