"""An iterator as a torch data set, for a DataLoader, Lightning or Accelerate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from etl.iterators import BatchIterator
from etl.iterators.iterator import call_optional
from etl.loading.batch import as_batch
from etl.loading.batch_plan import State
from etl.training.backends.tensors import as_tensor, map_batch

IN_A_WORKER = (
    "a TorchDataset was iterated in a worker process of a DataLoader, where each worker would load all of it again: "
    "use DataLoader(view, batch_size=None, num_workers=0), and let AsyncIterator load in the background"
)


class TorchDataset(IterableDataset[Any]):
    """Yields the batches of `iterator` as tuples of tensors on the CPU, which share the memory of its arrays.

    A batch is `(features, labels)`; if it has a mask, `(features, labels, features_mask, labels_mask)`. A part that the
    records lack is None. It is batched already: use `DataLoader(view, batch_size=None)`, or no DataLoader at all.

    As with a DataLoader, every loop over it is an epoch of its own, with its own order, whether it was left early or
    not; `set_epoch(n)` chooses which. Make it once, not in each epoch: a new view repeats an epoch that was left early.
    torchdata's `StatefulDataLoader` saves and restores `state_dict` and `load_state_dict`. Lightning restores them
    within an epoch alone, and Accelerate numbers the epochs itself: with these, call `set_epoch` before every epoch.
    Under torch.distributed give each rank its part: `TorchDataset(iterator.shard(rank, world_size))`; but give
    Accelerate all records, since its main process reads for all others and divides what it has read.

    Parameters
    ----------
    iterator : BatchIterator
        Any iterator whose batches are arrays.
    marks_repeated : bool
        Add a last part to every tuple: a bool tensor of shape `(batch,)` that is True for repeated records, so that an
        evaluation can leave them out: `correct[~repeated]`. By default tuples are the same on one rank and on several.

    Raises
    ------
    RuntimeError
        If it is iterated in a worker process of a DataLoader.

    Examples
    --------
    >>> raw = etl.RawIterator(etl.ImageFolder("photos"), etl.image_pipeline(size=64), batch_size=16)
    >>> loader = torch.utils.data.DataLoader(etl.TorchDataset(raw), batch_size=None)
    >>> [features.shape for features, labels in loader]
    [torch.Size([16, 3, 64, 64]), torch.Size([16, 3, 64, 64]), torch.Size([8, 3, 64, 64])]
    """

    def __init__(self, iterator: BatchIterator, *, marks_repeated: bool = False) -> None:
        self.iterator = iterator
        self._marks_repeated = marks_repeated
        # The epoch that was begun last. After a loop that was left early, the iterator alone would repeat it.
        self._begun: int | None = None
        self._is_resumed = False

    def __len__(self) -> int:
        """Return the batches of one whole epoch."""
        return len(self.iterator)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        # A generator, so that the epoch begins when the first batch is asked for, not when iter() is called.
        if get_worker_info() is not None:
            raise RuntimeError(IN_A_WORKER)
        if self._is_begun:
            self.iterator.set_epoch(self.iterator.epoch + 1)
        batches = map(self._as_tensors, self.iterator)
        self._begun, self._is_resumed = self.iterator.epoch, False
        yield from batches

    @property
    def rank(self) -> int:
        """The rank of its iterator."""
        return self.iterator.rank

    @property
    def world_size(self) -> int:
        """Ranks that share each epoch with its iterator."""
        return self.iterator.world_size

    @property
    def epoch(self) -> int:
        """The epoch that the next loop begins, or resumes."""
        return self.iterator.epoch + self._is_begun

    @property
    def order_settings(self) -> State:
        """The settings of its iterator that decide which records come next, at the epoch of the next loop."""
        settings: State = getattr(self.iterator, "order_settings", {})
        return {**settings, "epoch": self.epoch} if settings else {}

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one, from its first batch or, if a state of that epoch was loaded, from the state.

        Training loops call this before every epoch.
        """
        is_chosen = self._is_resumed or self._was_reset
        if is_chosen:
            call_optional(self.iterator, "settle")  # it may have been chosen in an iterator below
        if not (is_chosen and epoch == self.iterator.epoch):
            self.iterator.set_epoch(epoch)
            self._is_resumed = False
        self._begun = None

    def state_dict(self) -> State:
        """Return the state of its iterator, after the last batch that was handed out."""
        return self.iterator.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Resume at `state`, taken by this or by an iterator; raises `ValueError` if it does not fit."""
        self.iterator.load_state_dict(state)
        self._begun, self._is_resumed = None, True

    @property
    def _is_begun(self) -> bool:
        """True if the last loop has begun the epoch of the iterator, and nothing was chosen there since."""
        return self._begun == self.iterator.epoch and not self._was_reset

    @property
    def _was_reset(self) -> bool:
        """True if an epoch or a state was chosen on the iterator itself since its last loop began."""
        return getattr(self.iterator, "was_reset", False)

    def _as_tensors(self, batch: Any) -> tuple[Any, ...]:
        tensors = map_batch(as_batch(batch), as_tensor)  # below an AsyncIterator may be a user's loader
        parts: tuple[Any, ...] = (tensors.features, tensors.labels)
        if tensors.features_mask is not None or tensors.labels_mask is not None:
            parts += (tensors.features_mask, tensors.labels_mask)
        if not self._marks_repeated:
            return parts
        return *parts, torch.zeros(tensors.records, dtype=torch.bool) if tensors.repeated is None else tensors.repeated
