"""Compute that needs no torch: a simulated device, and a user's training step."""

from __future__ import annotations

import copy
import importlib.util
import random
import sys
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from etl.measuring.clock import Step
from etl.measuring.device import OneInFlight, SimulatedDevice
from etl.measuring.ranks import Rank, join_group
from etl.strategies.task import Task

TRAINING = "training"
INFERENCE = "inference"


def default_model(input_shape: tuple[int, ...]) -> str:
    """Return the name of the built-in model for records of this shape; raise `ValueError` if there is none."""
    if not input_shape:
        raise ValueError("no built-in model takes single numbers: give a model of your own with --model, or a --step")
    if len(input_shape) == 1:
        return "mlp"
    if len(input_shape) == 2:
        return "lstm"
    return "residual" if min(input_shape[-2:]) >= 32 else "lenet"


class Simulated(SimulatedDevice):
    """A simulated device, on which every batch takes the same time and no CPU."""

    score: float | None = None
    weights: str | None = ""
    device = "none"
    transfers: Sequence[float] | None = ()

    @property
    def step(self) -> Step:
        return self

    @property
    def no_op(self) -> Step:
        return SimulatedDevice(0.0)


class UserStep:
    """A user's training step, made with the same seed in every process.

    It is done when it returns. If the process has initialised CUDA, one step may be in flight.

    Parameters
    ----------
    make_step : callable
        Called with what its parameters ask for of `task`; returns `step(batch)`, which may return the loss.
    rank : Rank
        The rank that it computes for. If the others do so at the same time, `make_step` finds the process group of
        torch.distributed; otherwise its task is that of a single rank.

    Raises
    ------
    ValueError
        If what `make_step` returns is not callable.
    """

    weights: str | None = None

    def __init__(self, make_step: Callable[..., Any], task: Task, waits: bool, rank: Rank) -> None:
        join_group(rank)
        if not rank.is_together:
            task = replace(task, rank=0, world_size=1)
        # Not the loader's seed, since the step is made in mid-epoch: seeded again, an epoch would be the same again.
        seed_everything(task.seed + 1)
        self._user = task.call(make_step)
        if not callable(self._user):
            raise ValueError(f"--step returned a {type(self._user).__name__}; it must return a function of a batch")
        self._loss: Any = None
        self.step: Step = self._step
        self.no_op: Step = do_nothing
        self.device = "cpu"
        self.transfers: Sequence[float] | None = ()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            self.device = f"cuda:{torch.cuda.current_device()}"
            self.transfers = None  # the step copies its batch itself
            self.step, self.no_op = (
                OneInFlight(each, lambda: torch.cuda.Event(enable_timing=True), waits)
                for each in (self._step, do_nothing)
            )

    def _step(self, batch: Any) -> None:
        # A step may take entries out of its batch, as in `batch.pop("labels")`, which is used again.
        self._loss = self._user(copy.copy(batch) if isinstance(batch, MutableMapping) else batch)

    @property
    def score(self) -> float | None:
        """Loss of the last batch; None if the step returns none."""
        try:
            return None if self._loss is None else float(self._loss)
        except (TypeError, ValueError):
            return None


def do_nothing(batch: Any) -> None:
    """Do nothing: a step that takes no time."""


def seed_everything(seed: int) -> None:
    """Seed the random numbers of Python and numpy, and of torch if it is installed."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that a user's code may use
    if importlib.util.find_spec("torch") is not None:
        # Loaded now even if the user's code loads it later: then it would begin with a seed of its own.
        torch = importlib.import_module("torch")
        torch.manual_seed(seed)
