"""Compute for each batch: of a model in training or inference, of a user's step, or of a simulated device.

torch takes seconds to import, and a simulated device does without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from etl.functions import find_function
from etl.measuring.epochs import Compute
from etl.measuring.places import describe_error
from etl.measuring.server import INPUT_ERRORS
from etl.measuring.structure import describe
from etl.training.compute import Simulated, UserStep

if TYPE_CHECKING:  # another Python has what `user_loader` imports, no more
    from etl.comparison.request.conditions import Conditions
    from etl.comparison.request.settings import Settings
    from etl.comparison.request.work import Work
    from etl.measuring.ranks import Rank
    from etl.strategies.task import Task

MODEL_MODULES = ("torch", "etl.comparison.request.model_compute")
# torch.optim imports it for a second, when the first optimizer is made; so does the averaging of gradients.
DYNAMO = "torch._dynamo"


def modules_of(settings: Settings) -> tuple[str, ...]:
    """Return the modules that compute needs."""
    if settings.simulated_seconds is not None:
        return ()
    return MODEL_MODULES if settings.step is None and settings.ranks == 1 else (*MODEL_MODULES, DYNAMO)


def make_compute(work: Work, batch: Any) -> Compute:
    """Return the compute of `work`, for batches like `batch`.

    Raises
    ------
    ValueError
        If there are no labels to train on, or the model or the user's step cannot be made.
    """
    compute = make_plain_compute(work.settings, work.rank, work.task)
    if compute is not None:
        return compute
    from etl.comparison.request.model_compute import make_model_compute

    return make_model_compute(work, batch)


def make_plain_compute(conditions: Conditions, rank: Rank, task: Callable[[], Task]) -> Compute | None:
    """Return simulated compute, or that of a user's step; None if a model of the comparison computes."""
    if conditions.simulated_seconds is not None:
        return Simulated(conditions.simulated_seconds, conditions.waits_for_steps, rank.meet_devices())
    if conditions.step is not None:
        make_step = find_function(conditions.step, "--step")
        try:
            return NamedStep(make_step, task(), conditions.waits_for_steps, rank)
        except Exception as error:
            raise _step_error(error) from error
    return None


class StepError(RuntimeError):
    """A user's training step, or what makes it, raised an exception. The message names that, and its place."""


class NamedStep(UserStep):
    """A user's training step whose errors name their place in the user's code, and the batch."""

    def _step(self, batch: Any) -> None:
        try:
            super()._step(batch)
        except Exception as error:
            raise _step_error(error, f"; its batch is {describe(batch)}") from error


def _step_error(error: Exception, more: str = "") -> Exception:
    """Return what to raise for an error in the user's code: wrong input stays wrong input."""
    kind = ValueError if isinstance(error, INPUT_ERRORS) else StepError
    return kind(f"{describe_error(error)}{more}")


def is_on_device(settings: Settings) -> bool:
    """Return whether compute runs on a device other than the CPU."""
    if settings.simulated_seconds is not None:
        return False
    from etl.training.backends import backend

    return backend(settings.backend).device.type != "cpu"
