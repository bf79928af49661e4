"""A training that can be repeated with one thing changed: of a model, or by a user's step. Imports torch."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch

from etl.iterators.user_loader import as_iterator
from etl.loading.batch import Batch, as_batch
from etl.measuring.structure import count_batches
from etl.training.backends import Backend
from etl.training.backends.tensors import first_array
from etl.training.fit import no_batches_reason
from etl.training.ranks import find_ranks
from etl.training.step import Loss, TrainingStep, default_loss, unwrapped
from etl.training.synchronisation import is_wrapped

LEARNING_RATE = 0.0


@dataclass(frozen=True)
class Setup(ABC):
    """A training: the one that is examined, or a variant of it with one thing changed."""

    batches: Iterable[Any]
    # Each returns a context manager, and the training runs inside all of them.
    settings: tuple[Callable[[], AbstractContextManager[Any]], ...] = field(default=(), kw_only=True)

    @abstractmethod
    def make_step(self) -> Callable[[Any], None]:
        """Return a function that trains on one batch and waits for the device."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of compute."""

    @property
    def of_model(self) -> ModelSetup | None:
        """The same training if its model is known; None if the training step is the user's own function."""
        return None

    def accept(self, item: Any) -> Any:
        """Return `item`, which `batches` yielded, in the form that the step takes."""
        return item

    def within(self, *settings: Callable[[], AbstractContextManager[Any]]) -> Self:
        """Return this training with `settings` added."""
        return replace(self, settings=(*self.settings, *settings))

    def loading(self, batches: Iterable[Any]) -> Self:
        """Return this training with other `batches`."""
        return replace(self, batches=batches)

    def enter(self, stack: ExitStack) -> None:
        """Enter all settings; they apply until `stack` is closed."""
        for make in self.settings:
            stack.enter_context(make())

    def endless(self) -> Iterator[Any]:
        """Yield batches epoch after epoch.

        Raises
        ------
        ValueError
            If an epoch has no batches, or a model is trained and `etl.fit` does not accept the form of a batch.
        """
        while True:
            count = 0
            for count, item in enumerate(self.batches, start=1):  # noqa: B007 - used after the loop
                yield self.accept(item)
            if count == 0:
                reason = no_batches_reason(as_iterator(self.batches))
                raise ValueError(f"an epoch has no batches, so there is nothing to examine; {reason}")

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches of an epoch; None if the iterator has no length."""
        return count_batches(self.batches)


@dataclass(frozen=True)
class ModelSetup(Setup):
    """A training of a model with the step of `etl.fit`."""

    # A copy of the user's model, which training may change.
    model: torch.nn.Module
    backend: Backend
    # None for cross entropy if the labels are integers, otherwise the mean squared error.
    loss: Loss | None

    def make_step(self) -> Callable[[Batch], None]:
        """Return a function that trains on one batch and waits for the device.

        The learning rate is 0, so the weights do not change.
        """
        step: TrainingStep | None = None

        def train(batch: Batch) -> None:
            nonlocal step
            placed = self.backend.put(batch)
            if step is None:
                optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
                step = TrainingStep(self.model, optimizer, self.loss or default_loss(first_array(placed.labels)))
            step(placed)
            self.backend.synchronize()

        return train

    @property
    def device(self) -> torch.device:
        return self.backend.device

    @property
    def of_model(self) -> ModelSetup:
        return self

    def accept(self, item: Any) -> Batch:
        return as_batch(item)


@dataclass(frozen=True)
class StepSetup(Setup):
    """A training by the user's own `step(batch)`, which gets batches as they are and keeps whatever it learns."""

    step: Callable[[Any], Any]

    def make_step(self) -> Callable[[Any], None]:
        def train(batch: Any) -> None:
            self.step(batch)
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()

        return train

    @property
    def device(self) -> torch.device:
        """The current CUDA device if anything in this process has initialised CUDA through torch; otherwise the CPU."""
        if torch.cuda.is_initialized():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")


def make_setup(model: torch.nn.Module, iterator: Iterable[Any], backend: Backend, loss: Loss | None) -> ModelSetup:
    """Return the training of a copy of `model`, without torch's `DistributedDataParallel` around it.

    As in `etl.fit`, the weights have the dtype of `iterator` if it names one.

    Raises
    ------
    ValueError
        If the model cannot be copied, or cannot be trained without the other ranks.
    """
    model = unwrapped(model)
    is_shared = any(is_wrapped(each) or isinstance(each, torch.nn.SyncBatchNorm) for each in model.modules())
    if is_shared and not find_ranks().is_alone:
        raise ValueError(
            "one rank cannot train this model alone, because a part of it is wrapped or sharded, or has SyncBatchNorm: "
            "give a training step instead, on all ranks"
        )
    try:
        copied = copy.deepcopy(model)
    except Exception as error:
        raise ValueError(f"the model cannot be copied, and without a copy its state would change: {error}") from error
    placed = backend.place(copied, getattr(as_iterator(iterator), "dtype", None))
    return ModelSetup(iterator, placed.train(), backend, loss)
