"""A multi-layer perceptron."""

from __future__ import annotations

import math

from torch import nn


class Mlp(nn.Sequential):
    """Flattens its input; two hidden layers of 256 with ReLU; `(batch, *input_shape)` to `(batch, classes)`."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(math.prod(input_shape), 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, classes),
        )
