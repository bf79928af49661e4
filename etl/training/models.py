"""The models that benchmark suites and examples share. Importing this loads torch.

They must not change, because the suites' history of compute times would change with them. A test pins their parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def create(name: str, input_shape: tuple[int, ...], classes: int, seed: int = 0) -> torch.nn.Module:
    """Create a model; torch's global random state is left as it was.

    Parameters
    ----------
    name : str
        "mlp", "lenet", "residual" or "lstm".

    Raises
    ------
    ValueError
        If the name is unknown, or the model does not support `input_shape`.

    Examples
    --------
    >>> model = etl.models.create("lenet", (1, 28, 28), 10)
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(MODELS)}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the other devices as well
        return MODELS[name](input_shape, classes)


class Mlp(nn.Sequential):
    """A perceptron with two hidden layers of 256 units and ReLU: `(batch, *input_shape)` to `(batch, classes)`."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(math.prod(input_shape), 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, classes),
        )


class LeNet(nn.Sequential):
    """LeNet: `(batch, channels, height, width)` to `(batch, classes)`.

    Two 5x5 convolutions with max pooling, and two dense layers (LeCun et al. 1998, in the form of DL4J's example: 20
    and 50 maps, 500 units, ReLU before the output). Height and width are at least 16.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        channels, height, width = input_shape
        flat = 50 * _pooled_twice(height) * _pooled_twice(width)
        if min(_pooled_twice(height), _pooled_twice(width)) < 1:
            raise ValueError(f"LeNet needs images of at least 16 x 16, not {height} x {width}")
        super().__init__(
            nn.Conv2d(channels, 20, kernel_size=5),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, kernel_size=5),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(flat, 500),
            nn.ReLU(),
            nn.Linear(500, classes),
        )


class Residual(nn.Module):
    """A small residual network: `(batch, channels, height, width)` to `(batch, classes)`.

    A strided stem, three basic blocks (He et al. 2015) of 16, 32 and 64 maps, and average pooling. Images are at least
    8 x 8, or 17 x 17 in a batch of one: batch normalisation needs more than one pixel.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels = input_shape[0]
        self.stem = nn.Conv2d(channels, 16, kernel_size=7, stride=4, padding=3, bias=False)
        self.stem_norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(_Block(16, 16, 1), _Block(16, 32, 2), _Block(32, 64, 2))
        self.output = nn.Linear(64, classes)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        maps = F.relu(self.stem_norm(self.stem(features)))
        logits: torch.Tensor = self.output(self.blocks(maps).mean(dim=(2, 3)))
        return logits


class Lstm(nn.Module):
    """One LSTM layer of 128 units, and a dense layer on its state at the last step of each sequence.

    `(batch, steps, inputs)` to `(batch, classes)`. `mask`, of shape `(batch, steps)`, is 1 for data and 0 for padding
    at the end; it determines the last step of each sequence. If there is another axis, as in images
    `(batch, 1, rows, columns)`, the rows are the steps.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_shape[-1], 128, batch_first=True)
        self.output = nn.Linear(128, classes)

    def forward(self, features: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        states, _ = self.lstm(features.flatten(1, -2) if features.ndim > 3 else features)
        if mask is None:
            last = states[:, -1]
        else:
            # Counted as integers, since bfloat16 cannot represent 257.
            final = (mask != 0).sum(dim=1).clamp(min=1) - 1
            last = states[torch.arange(len(states), device=states.device), final]
        logits: torch.Tensor = self.output(last)
        return logits


MODELS: dict[str, Callable[[tuple[int, ...], int], torch.nn.Module]] = {
    "mlp": Mlp,
    "lenet": LeNet,
    "residual": Residual,
    "lstm": Lstm,
}


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.first_norm(self.first(maps)))
        return F.relu(self.second_norm(self.second(inner)) + self.shortcut(maps))


def _pooled_twice(size: int) -> int:
    return ((size - 4) // 2 - 4) // 2
