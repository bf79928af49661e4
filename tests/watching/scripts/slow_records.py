"""Waits for slow records: one in a hundred takes 0.6 s, the others next to nothing."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Uneven(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.0005)
        if index % 100 == 37:
            self.repair()
        return torch.full((64,), float(index))

    def repair(self):
        time.sleep(0.6)


if __name__ == "__main__":
    model = torch.nn.Linear(64, 2)
    for features in DataLoader(Uneven(), batch_size=8, num_workers=2, shuffle=True):
        for _ in range(4):
            model(features).sum().backward()
