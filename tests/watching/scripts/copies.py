"""Waits for copies: the loop converts every batch of large images itself, on the CPU, before a small step."""

import torch
from torch.utils.data import DataLoader

images = torch.zeros((512, 3, 256, 256), dtype=torch.uint8)
model = torch.nn.Sequential(torch.nn.AvgPool2d(64), torch.nn.Flatten(), torch.nn.Linear(48, 2))
for _ in range(12):
    for first in DataLoader(range(0, 512, 64), batch_size=1):
        batch = images[int(first) : int(first) + 64]
        batch = batch.to(torch.float64)
        batch = batch.to(torch.float32)
        model(batch).sum().backward()
