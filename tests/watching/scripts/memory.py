"""Memory runs out: the data set keeps every record that it has loaded."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Hoard(Dataset):
    def __init__(self):
        self.kept = []

    def __len__(self):
        return 3600

    def __getitem__(self, index):
        self.kept.append(torch.ones(1 << 18))  # 1 MiB
        return self.kept[-1][:64]


model = torch.nn.Linear(64, 2)
for features in DataLoader(Hoard(), batch_size=4):
    model(features).sum().backward()
    time.sleep(0.025)  # the rest of a step, on a device
