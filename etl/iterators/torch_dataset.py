"""An iterator where torch's tools expect a data set: what a DataLoader, Lightning or Accelerate can be given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from etl.iterators import BatchIterator
from etl.loading.batch import Batch
from etl.loading.batch_plan import State
from etl.training.backends.tensors import as_tensor, map_batch

IN_A_WORKER = (
    "a TorchDataset was iterated in a worker process of a DataLoader, where each worker would load all of it again: "
    "use DataLoader(view, batch_size=None, num_workers=0), and let AsyncIterator load in the background"
)


class TorchDataset(IterableDataset[Any]):
    """The batches of `iterator` as tuples of tensors on the CPU, which share the memory of its arrays.

    A batch is `(features, labels)`, with `features_mask` and `labels_mask` behind them where it has a mask; a part that
    the records lack is None. It is batched already: `DataLoader(view, batch_size=None)`, or no DataLoader at all.

    The mark of repeated records is dropped, so that tuples stay the same on one rank and on several. With
    `marks_repeated` it is the last part of every tuple, a bool tensor of shape `(batch,)`, for an evaluation to leave
    such records out: `correct[~repeated]`.

    As with a DataLoader, every loop over it is an epoch of its own, with its own order, whether it ended or was left
    early; `set_epoch(n)` chooses which. `state_dict` and `load_state_dict` are what torchdata's `StatefulDataLoader`
    and Lightning save and restore. Under torch.distributed give each rank its part:
    `TorchDataset(iterator.shard(rank, world_size))`. Raises `RuntimeError` where it is iterated in a DataLoader's
    worker process.
    """

    def __init__(self, iterator: BatchIterator, *, marks_repeated: bool = False) -> None:
        self.iterator = iterator
        self._marks_repeated = marks_repeated
        # The epoch that was begun; the iterator itself would begin one that was left early again.
        self._begun: int | None = None
        self._is_resumed = False

    def __len__(self) -> int:
        """Batches of one whole epoch."""
        return len(self.iterator)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        # A generator: an epoch begins with its first batch, not where a loop asks whether this can be iterated at all.
        if get_worker_info() is not None:
            raise RuntimeError(IN_A_WORKER)
        if self._begun == self.iterator.epoch:
            self.iterator.set_epoch(self._begun + 1)
        self._begun, self._is_resumed = self.iterator.epoch, False
        yield from map(self._as_tensors, self.iterator)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one that is iterated, from its first batch; or, where a state of that epoch was loaded,
        from where that was taken: loops call this before every epoch.
        """
        if not (self._is_resumed and epoch == self.iterator.epoch):
            self.iterator.set_epoch(epoch)
            self._is_resumed = False
        self._begun = None

    def state_dict(self) -> State:
        """Where it stands, after the last batch that was handed out; the state of its iterator."""
        return self.iterator.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Go on where `state` was taken, by this or by an iterator; raises `ValueError` where it does not fit."""
        self.iterator.load_state_dict(state)
        self._begun, self._is_resumed = None, True

    def _as_tensors(self, batch: Batch) -> tuple[Any, ...]:
        tensors = map_batch(batch, as_tensor)
        parts: tuple[Any, ...] = (tensors.features, tensors.labels)
        if tensors.features_mask is not None or tensors.labels_mask is not None:
            parts += (tensors.features_mask, tensors.labels_mask)
        if not self._marks_repeated:
            return parts
        return *parts, torch.zeros(len(tensors), dtype=torch.bool) if tensors.repeated is None else tensors.repeated
