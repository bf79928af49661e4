"""Compute for each batch: of a model in training or inference, of a user's step, or of a simulated device.

torch takes seconds to import, and a simulated device does without it.
"""

from __future__ import annotations

from typing import Any

from etl.comparison.request.settings import Settings
from etl.comparison.request.work import Work
from etl.functions import find_function
from etl.measuring.epochs import Compute
from etl.training.compute import Simulated, UserStep

MODEL_MODULES = ("torch", "etl.training.model_compute")
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
    settings = work.settings
    if settings.simulated_seconds is not None:
        return Simulated(settings.simulated_seconds, settings.waits_for_steps, work.rank.meet_devices())
    if settings.step is not None:
        step = find_function(settings.step, "--step")
        return UserStep(step, work.task(), settings.waits_for_steps, work.rank)
    from etl.training.model_compute import make_model_compute

    return make_model_compute(work, batch)


def is_on_device(settings: Settings) -> bool:
    """Return whether compute runs on a device other than the CPU."""
    if settings.simulated_seconds is not None:
        return False
    from etl.training.backends import backend

    return backend(settings.backend).device.type != "cpu"
