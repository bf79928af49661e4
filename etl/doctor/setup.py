"""What is examined: a model, what it is trained from, and where. Loads torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from etl.loading.batch import Batch
from etl.training.backends import Backend
from etl.training.backends.tensors import map_batch
from etl.training.fit import Loss, TrainingStep, cross_entropy, squared_error

if TYPE_CHECKING:
    from typing_extensions import Self

LEARNING_RATE = 0.0


@dataclass(frozen=True)
class Setup:
    """Training as it is set up, or with one thing changed. `model` is a copy, which training may change; `settings`
    make context managers that are entered around it.
    """

    model: torch.nn.Module
    batches: Iterable[Any]
    backend: Backend
    loss: Loss | None
    settings: tuple[Callable[[], AbstractContextManager[Any]], ...] = ()

    def within(self, *settings: Callable[[], AbstractContextManager[Any]]) -> Self:
        """The same, with these settings in force."""
        return replace(self, settings=(*self.settings, *settings))

    def loading(self, batches: Iterable[Any]) -> Self:
        """The same, trained from `batches`."""
        return replace(self, batches=batches)

    def enter(self, stack: ExitStack) -> None:
        """Put the settings in force until `stack` is closed."""
        for make in self.settings:
            stack.enter_context(make())

    def make_step(self) -> Callable[[Batch], None]:
        """What trains on one batch, and returns when the device is done. The weights stay as they are."""
        step: TrainingStep | None = None

        def train(batch: Batch) -> None:
            nonlocal step
            placed = self.backend.put(batch)
            if step is None:
                optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
                step = TrainingStep(self.model, optimizer, self.loss or _usual_loss(placed))
            step(placed)
            self.backend.synchronize()

        return train

    def endless(self) -> Iterator[Batch]:
        """Its batches, epoch after epoch. Raises `ValueError` where an epoch has none."""
        while True:
            count = 0
            for count, item in enumerate(self.batches, start=1):  # noqa: B007 - it is looked at after the loop
                yield as_batch(item)
            if count == 0:
                raise ValueError("the iterator has no batches, so there is nothing to examine")

    @property
    def batches_per_epoch(self) -> int | None:
        """None where the iterator does not tell."""
        try:
            return len(self.batches)  # type: ignore[arg-type]
        except TypeError:
            return None


def make_setup(model: torch.nn.Module, iterator: Iterable[Any], backend: Backend, loss: Loss | None) -> Setup:
    """A set-up with a copy of `model`, on the device of `backend`, in the dtype that `etl.fit` would give it where
    `iterator` has one. Raises `ValueError` where the model cannot be copied.
    """
    try:
        copied = copy.deepcopy(model)
    except Exception as error:
        raise ValueError(f"the model cannot be copied, so that trying it would change it: {error}") from error
    dtype = getattr(iterator, "dtype", None)
    placed = backend.place(copied, dtype) if isinstance(dtype, str) else copied.to(backend.device)
    return Setup(placed.train(), iterator, backend, loss)


def as_batch(item: Any) -> Batch:
    """`item` of any loader as a batch: one already, or a pair of features and labels. Raises `ValueError`."""
    if isinstance(item, Batch):
        return item
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return Batch(item[0], item[1])
    raise ValueError(f"a batch is an etl.Batch or a pair of features and labels, not a {type(item).__name__}")


def first_array(part: Any) -> Any:
    """Features or labels, or the first of several."""
    return part[0] if isinstance(part, tuple) else part


def _usual_loss(batch: Batch) -> Loss:
    labels = first_array(batch.labels)
    if labels is None:
        raise ValueError("the batches have no labels to train for; give `loss` a function that needs none")
    return squared_error if labels.is_floating_point() else cross_entropy


def copy_batch(batch: Batch) -> Batch:
    """The same in memory of its own, which no iterator reuses."""

    def copied(array: Any) -> Any:
        return array.detach().clone() if isinstance(array, torch.Tensor) else np.array(array)

    return map_batch(batch, copied)
