"""A running training, as its listeners see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from etl.iterators import BatchIterator
from etl.iterators.iterator import call_optional
from etl.training.backends import Backend
from etl.training.progress import RankProgress, own_progress
from etl.training.ranks import Ranks, record_failure
from etl.training.step import TrainingStep, unwrapped
from etl.training.synchronisation import Synchronisation, wrapped_part

if TYPE_CHECKING:
    import torch

# What `state_dict` returns has changed if this has.
VERSION = 1


@dataclass(eq=False)
class Training:
    """A running training.

    Attributes
    ----------
    model : torch.nn.Module
        The model on its device, without torch's `DistributedDataParallel`.
    optimizer : torch.optim.Optimizer
        Updates its parameters.
    iterator : BatchIterator
        This rank's batches.
    backend : Backend
        The device.
    ranks : Ranks
        This rank, and how to reach the others.
    synchronisation : Synchronisation
        Keeps the models of the ranks equal.
    step : TrainingStep
        A step on one batch.
    epochs : int or None
        Epochs to train, counted from `first_epoch`; None until it is stopped.
    listeners : sequence of Listener
        All listeners of the fit.
    first_epoch : int
        Number of the first epoch of the training, also after a resume.
    epochs_done : int
        Whole epochs since then.
    are_models_equal : bool
        True if the models of all ranks are equal. All ranks agree on it.
    stopped : str or None
        Why a listener has stopped the training.
    progress : RankProgress
        What this rank is doing.
    failed : bool
        True once an error has ended it: other ranks must not be waited for.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    iterator: BatchIterator
    backend: Backend
    ranks: Ranks
    synchronisation: Synchronisation
    step: TrainingStep
    epochs: int | None
    listeners: Sequence[Any]
    first_epoch: int = field(init=False)
    epochs_done: int = 0
    are_models_equal: bool = True
    stopped: str | None = None
    progress: RankProgress = field(init=False)
    failed: bool = False

    def __post_init__(self) -> None:
        self.model = unwrapped(self.model)
        call_optional(self.iterator, "settle")
        self.first_epoch = self.iterator.epoch
        self.progress = own_progress(self.ranks.rank)

    @property
    def is_over(self) -> bool:
        """True if no further epoch is to be trained."""
        return self.stopped is not None or (self.epochs is not None and self.epochs_done >= self.epochs)

    @property
    def can_resume(self) -> bool:
        """True if the iterator can resume within an epoch."""
        return self.position is not None

    @property
    def position(self) -> tuple[int, int] | None:
        """Epoch and position within it after the last batch; None if the iterator does not tell."""
        if not getattr(self.iterator, "can_resume", True):
            return None
        try:
            state: Any = self.iterator.state_dict()
            return state["epoch"], state["position"]
        except (AttributeError, KeyError, NotImplementedError, TypeError):  # a user's iterator
            return None

    def stop(self, reason: str) -> None:
        """End the training once all listeners have run. All ranks must do this after the same iteration."""
        self.stopped = self.stopped or reason

    def state_dict(self) -> dict[str, Any]:
        """Return the state of model, optimizer, iterator and listeners, to be loaded by any number of ranks.

        Its tensors are those of the training, which go on changing. It holds nothing else but JSON values.
        """
        return {
            "version": VERSION,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizer_class": type(self.optimizer).__name__,
            "iterator": self._iterator_state,
            "first_epoch": self.first_epoch,
            "listeners": [
                {"class": type(each).__name__, "state": each.state_dict() if hasattr(each, "state_dict") else None}
                for each in self.listeners
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`. Call it before the first batch.

        Raises
        ------
        ValueError
            If it was taken with other listeners, by another version, or of other records; if the model or the
            optimizer is another one.
        """
        if state.get("version") != VERSION:
            raise ValueError(f"the state has version {state.get('version')!r}, this program reads {VERSION}")
        kinds = [type(each).__name__ for each in self.listeners]
        if kinds != [each["class"] for each in state["listeners"]]:
            taken = ", ".join(each["class"] for each in state["listeners"])
            raise ValueError(f"the state was taken with the listeners {taken}, this training has {', '.join(kinds)}")
        taken_with, own = state.get("optimizer_class"), type(self.optimizer).__name__
        if taken_with not in (None, own):  # earlier versions did not write it
            raise ValueError(f"the state was taken with the optimizer {taken_with}, this training has {own}")
        before = self._iterator_state
        self._load_iterator(state["iterator"])
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            self._load_iterator(before)
            raise ValueError(f"the state is of another model or optimizer: {error}") from error
        self.first_epoch = state["first_epoch"]
        self.epochs_done = state["iterator"]["epoch"] - self.first_epoch
        for listener, kept in zip(self.listeners, state["listeners"], strict=True):
            if kept["state"] is not None:
                listener.load_state_dict(kept["state"])

    @property
    def _iterator_state(self) -> dict[str, Any]:
        return self.iterator.state_dict() if self.can_resume else {"epoch": self.iterator.epoch}

    def _load_iterator(self, state: dict[str, Any]) -> None:
        if self.can_resume:
            self.iterator.load_state_dict(state)
        else:
            self.iterator.set_epoch(state["epoch"])

    def check_whole_model(self, listener: str) -> None:
        """Raise `ValueError` if each of several ranks has only a part of the model."""
        if not self.ranks.is_alone and wrapped_part(self.model) is not None:
            raise ValueError(f"{listener} needs the whole model on each rank, not a fully sharded one")

    def close(self) -> None:
        """Drop the wrapper of the model, which would keep threads of torch running as long as a listener lives."""
        self.step.close()
        self.synchronisation.close()

    def fail(self, error: BaseException) -> None:
        """Note that `error` ends the training on this rank, and where, for the process that started the ranks."""
        self.failed = True
        if self.ranks.is_alone:
            return
        where = f"{self.ranks}, while {self.progress.doing}"
        error.add_note(f"raised by {where}")
        # torchrun reports the error that failed first.
        record_failure(error, where)
