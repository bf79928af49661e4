"""The models that suites and examples share. Loads torch.

They do not change: what the history of the suites measured as compute would change with them. A test pins their
parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from etl.training.models.lenet import LeNet
from etl.training.models.lstm import Lstm
from etl.training.models.mlp import Mlp
from etl.training.models.residual import Residual

MODELS: dict[str, Callable[[tuple[int, ...], int], torch.nn.Module]] = {
    "mlp": Mlp,
    "lenet": LeNet,
    "residual": Residual,
    "lstm": Lstm,
}


def create(name: str, input_shape: tuple[int, ...], classes: int, seed: int = 0) -> torch.nn.Module:
    """The model called `name` for records of `input_shape`; equal seeds give equal initial weights.

    Leaves torch's global random state as it was. Raises `ValueError` for an unknown name, listing the known ones.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(MODELS)}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the other devices as well
        return MODELS[name](input_shape, classes)


__all__ = ["MODELS", "LeNet", "Lstm", "Mlp", "Residual", "create"]
