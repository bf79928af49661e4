"""Memory runs out: the data set keeps every record that it has loaded."""

import torch
from torch.utils.data import DataLoader, Dataset


class Hoard(Dataset):
    def __init__(self):
        self.kept = []

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        self.kept.append(torch.ones(1 << 18))  # 1 MiB
        return self.kept[-1][:64]


model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU())
for features in DataLoader(Hoard(), batch_size=4):
    for _ in range(4):
        model(features).sum().backward()
