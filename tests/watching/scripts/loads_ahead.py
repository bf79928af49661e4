"""Does not wait for data: two workers load behind the steps."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        time.sleep(0.0001)
        return torch.rand(2048)


if __name__ == "__main__":
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(3)))
    for features in DataLoader(Records(), batch_size=8, num_workers=2):
        model(features).sum().backward()
