"""Waits for data: one worker is too few. Its first batch takes as long as all others, since it reads an index."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Indexed(Dataset):
    index = None

    def __len__(self):
        return 2400

    def __getitem__(self, index):
        if self.index is None:
            time.sleep(5.0)
            self.index = list(range(100_000))
        return torch.full((64,), float(sum(self.index[index:])))


if __name__ == "__main__":
    model = torch.nn.Linear(64, 2)
    for features in DataLoader(Indexed(), batch_size=8, num_workers=1):
        model(features).sum().backward()
