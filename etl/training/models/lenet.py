"""LeNet, as in the source documents' example on MNIST."""

from __future__ import annotations

from torch import nn


class LeNet(nn.Sequential):
    """Two 5x5 convolutions with max pooling and two dense layers (LeCun et al. 1998, in the form of DL4J's example:
    20 and 50 maps, 500 units, ReLU before the output). `(batch, channels, height, width)` to `(batch, classes)`;
    height and width of at least 16.
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


def _pooled_twice(size: int) -> int:
    return ((size - 4) // 2 - 4) // 2
