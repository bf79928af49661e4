"""The part that iterators over numbered records share: epochs, position, resuming and sharding."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from etl.arguments import whole_number
from etl.iterators.sampler import IDENTITY, Order, Uneven
from etl.loading.batch import Batch
from etl.loading.batch_plan import ENDED, Loader, Loading, State, Where, nowhere
from etl.loading.buffer_pool import Workspaces
from etl.loading.skipped import Skipped
from etl.runtime.boundaries import batch_boundary
from etl.sources.record import RecordError
from etl.stages.dtypes import find_dtype

if TYPE_CHECKING:
    from typing_extensions import Self


class EpochIterator:
    """Implements `BatchIterator` over an `Order` and a `Loader`."""

    async_supported = True

    def __init__(self, order: Order, loader: Loader, dtype: str, *, reuse: bool = True) -> None:
        find_dtype(dtype)
        self._order = order
        self._loader = loader
        self._dtype = dtype
        self._workspaces = Workspaces(reuse)
        self._epoch = 0
        self._position = 0
        self._resume_at = 0
        self._filler: _Filler | None = None
        self._running: object | None = None
        self._closed = False

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

    @property
    def loader(self) -> Loader:
        """What loads its records, for workers of any kind."""
        return self._loader

    @property
    def reuse(self) -> bool:
        """Whether the memory of a batch serves another one."""
        return self._workspaces.reuse

    def __len__(self) -> int:
        """Batches of one whole epoch."""
        return self._order.batches

    def __iter__(self) -> Iterator[Batch]:
        return self._batches(self.begin_epoch())

    def _batches(self, token: object) -> Iterator[Batch]:
        skipped, where = Skipped(), nowhere()
        loadings = self.loadings(workers=1)
        while True:
            if self._running is not token:
                raise RuntimeError(ENDED)
            batch_boundary()
            loading, after = next(loadings, (None, 0))
            if loading is None:
                break
            loading.load(0, len(loading), where)
            skipped.add(loading)
            batch = loading.finish()
            if batch is None:
                batch = self.fill(loading)
            del loading  # or the batch would be held here, and its memory not free for the next
            self._position = after
            if batch is not None:
                yield batch
            del batch
        self.end_epoch(skipped)

    def watch_loader(self, watch: Callable[[Loader], Loader]) -> None:
        """Load with `watch(loader)` from now on, which must load the same."""
        self._loader = watch(self._loader)

    def allocate_with(self, allocate: Callable[[int], np.ndarray]) -> None:
        """Make batches from now on in memory from `allocate(nbytes)`, uint8 of shape `(nbytes,)`."""
        self._workspaces = Workspaces(self._workspaces.reuse, self._workspaces.most_free, allocate)

    def begin_epoch(self) -> object:
        """Stand where the next epoch begins, which ends the one before; what `_running` is while that goes on."""
        if self._closed:
            raise RuntimeError(f"{type(self).__name__} is closed")
        self.hold_batches(1)
        self._position, self._resume_at = self._resume_at, 0
        self._running = object()
        return self._running

    def hold_batches(self, batches: int) -> None:
        """Keep the memory of so many batches, beside the caller's own, for reuse in this epoch."""
        self._workspaces.most_free = batches + 1

    def end_epoch(self, skipped: Skipped) -> None:
        """Go on to the next epoch, and say what this one has left out."""
        ended = self._epoch
        self._epoch += 1
        self._position = 0
        self._filler = None
        skipped.warn(ended, self._order.records)  # last, because warnings may be errors

    def loadings(
        self, workers: int, workspaces: Workspaces | None = None, where: Where | None = None
    ) -> Iterator[tuple[Loading, int]]:
        """The rest of the epoch, batch by batch, to be loaded by so many workers, into `workspaces` rather than its
        own; and the position after each. `where` tells `error_at` which record is loaded to lay out the next one.
        """
        epoch, most = self._epoch, self.batch_size
        workspaces = self._workspaces if workspaces is None else workspaces
        where = nowhere() if where is None else where
        for numbers, repeated, after in self._order.plan(epoch, self._position):
            yield Loading(self._loader, numbers, epoch, workspaces, most, workers, where, repeated), after

    def fill(self, loading: Loading) -> Batch | None:
        """Load and return a batch of repeated records in place of `loading`, whose records were all left out, so that
        this rank gets as many batches as the others. None if it need not.

        It takes as many records as `loading` from the start of the epoch, or from the first place after it at which
        there is a good one: the same for every strategy, and after a resume. Raises `RecordError` if the epoch has no
        good record.
        """
        if not self._order.has_equal_ranks:
            return None
        if self._filler is None or self._filler.epoch != loading.epoch:
            self._filler = _Filler(self._order, loading.epoch)
        loading.arrays = {}  # its memory may serve for the other batch
        return self._filler.fill(loading, self._workspaces)

    def error_at(self, where: Where, cause: BaseException) -> BaseException:
        """The error for what happened to a worker that was there; `cause` itself where it was at no record."""
        return self._loader.error_at(where, cause) if where[0] >= 0 else cause

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one that is iterated, from its first batch."""
        self._epoch = whole_number("epoch", epoch, least=0)
        self._position, self._resume_at, self._running = 0, 0, None

    def state_dict(self) -> State:
        """Where this iterator stands, after the last batch that was handed out; JSON values only."""
        return self.state_at(self._epoch, self._position)

    def state_at(self, epoch: int, position: int) -> State:
        """The state after the batch that ends at `position` of `epoch`."""
        ended = self._order.ended(position)
        return {
            "epoch": epoch + 1 if ended else epoch,
            "position": 0 if ended else position,
            **self._order.identity,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on where `state` was taken: the next epoch iterated is the rest of that one.

        The state of one of several ranks is that of all of them, if all have been handed as many batches:
        whatever number of ranks loads it, each record that was left comes once, beside those that are marked as
        repeated. Of ranks that have not, the state with the smallest position repeats what others were handed after it,
        and that with the largest leaves out what others were not. What `drop_last` and `uneven="drop"` leave out is
        decided by the ranks that load the state.

        Raises `ValueError` where `state` was taken from other records or with another seed, `shuffle` or buckets.
        """
        for name in IDENTITY:
            mine = self._order.identity.get(name)
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

    def shard(self, rank: int, world_size: int, uneven: Uneven = "pad") -> Any:
        """Return an iterator over the part of each epoch that belongs to `rank`; see `BatchIterator.shard`."""
        if self._order.world_size != 1:
            raise ValueError(f"this iterator is shard {self._order.rank} of {self._order.world_size} already")
        part = copy.copy(self)
        part._workspaces = Workspaces(self._workspaces.reuse)
        part._order = dataclasses.replace(self._order, rank=rank, world_size=world_size, uneven=uneven)
        part.set_epoch(self._epoch)
        return part

    def close(self) -> None:
        """Give back its files; iterating it afterwards is an error."""
        self._closed = True
        self._running = None
        self._workspaces.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Filler:
    """Loads records from the start of one epoch, for batches whose own records were all left out."""

    def __init__(self, order: Order, epoch: int) -> None:
        self.epoch = epoch
        self._ranks = f"rank {order.rank} of {order.world_size}"
        self._numbers = order.epoch(epoch)
        # Where the first good ones are, by how many are taken at once, so that bad ones are tried once an epoch.
        self._first: dict[int, int] = {}

    def fill(self, bad: Loading, workspaces: Workspaces) -> Batch:
        """Return a batch for the place of `bad`, marked as repeated; raises `RecordError` if there is none."""
        most = len(bad)
        for first in range(self._first.get(most, 0), len(self._numbers), most):
            numbers = self._numbers[first : first + most]
            loading = Loading(bad.loader, numbers, self.epoch, workspaces, most, 1, nowhere(), repeated=len(numbers))
            loading.load(0, len(loading), nowhere())
            batch = loading.finish()
            if batch is not None:
                self._first[most] = first
                return batch
        error = bad.skipped[0]
        cause = (
            f"{error.cause}; no record of its batch can be loaded, and none of epoch {self.epoch} to put in its place, "
            f"without which {self._ranks} would get a batch fewer than others: repair the records, or call "
            'shard(..., uneven="allow")'
        )
        raise RecordError(error.source, error.record, error.stage, error.name, cause)
