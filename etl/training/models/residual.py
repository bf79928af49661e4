"""A small residual network."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """A strided stem and three residual blocks (He et al. 2015, basic block) of 16, 32 and 64 maps, then average
    pooling. `(batch, channels, height, width)` of any size from 8 x 8 (17 x 17 for batches of one, which batch
    normalisation needs several pixels of) to `(batch, classes)`.
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
