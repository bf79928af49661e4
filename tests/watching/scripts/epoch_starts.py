"""Waits at the start of every epoch: its workers start anew, and each reads an index first."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Indexed(Dataset):
    index = None

    def __len__(self):
        return 320

    def __getitem__(self, index):
        if self.index is None:
            time.sleep(0.4)
            self.index = list(range(100_000))
        return torch.full((64,), float(self.index[index]))


if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 2))
    loader = DataLoader(Indexed(), batch_size=16, num_workers=2)
    for _ in range(14):
        for features in loader:
            for _ in range(3):
                model(features).sum().backward()
