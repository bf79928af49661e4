"""Does not wait for data: a step takes much longer than its batch."""

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.rand(2400, 64), torch.randint(2, (2400,)))
model = torch.nn.Sequential(
    torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 2)
)
for features, labels in DataLoader(data, batch_size=8):
    torch.nn.functional.cross_entropy(model(features), labels).backward()
