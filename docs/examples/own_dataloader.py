"""Compare a DataLoader of your own with this project's loaders, on your own training step."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import etl


class Measurements(Dataset):
    """A data set as many have one: each record takes some work in Python."""

    def __init__(self) -> None:
        self.values = np.random.default_rng(0).standard_normal((512, 64), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        values = self.values[index]
        for _ in range(100):
            values = np.tanh(values)
        return values, int(self.values[index, 0] > 0)


def dataloader(source, batch_size, workers):
    """Return the loader; it is called with what its parameters name."""
    return DataLoader(source, batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def make_step():
    """Return a training step of your own."""
    model = torch.nn.Linear(64, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        features, labels = batch
        loss = torch.nn.functional.cross_entropy(model(torch.as_tensor(features)), torch.as_tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def main(budget: str = "60s") -> etl.Report:
    """Return the report."""
    return etl.compare(Measurements(), ["raw", "async-raw", dataloader], make_step=make_step, budget=budget)


if __name__ == "__main__":
    print(main())
