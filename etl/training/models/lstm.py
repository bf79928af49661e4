"""A recurrent network for sequences."""

from __future__ import annotations

import torch
from torch import nn


class Lstm(nn.Module):
    """One LSTM layer of 128 units and a dense layer on its state at each sequence's last step.

    `(batch, steps, inputs)` to `(batch, classes)`; with `mask`, `(batch, steps)`, 1 for data and 0 for padding at the
    end, the last step is that of each sequence. A further axis, as in images `(batch, 1, rows, columns)`, is read as
    steps of rows.
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
            # Counted as integers: bfloat16 has none between 256 and 258.
            final = (mask != 0).sum(dim=1).clamp(min=1) - 1
            last = states[torch.arange(len(states), device=states.device), final]
        logits: torch.Tensor = self.output(last)
        return logits
