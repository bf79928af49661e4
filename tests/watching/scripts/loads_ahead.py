"""Does not wait for data: two workers load behind the steps."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __len__(self):
        return 2400

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.rand(64)


if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048))
    for features in DataLoader(Records(), batch_size=8, num_workers=2):
        model(features).sum().backward()
