"""One of two ranks loads slowly, and the other one waits for it in every step: start it with torchrun."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Part(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 1600

    def __getitem__(self, index):
        time.sleep(0.004 if self.rank == 1 else 0.0001)
        return torch.full((64,), float(index))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 2))
    for features in DataLoader(Part(dist.get_rank()), batch_size=8):
        model(features).sum().backward()
    dist.destroy_process_group()
