"""Loaders and a training step for comparisons on several ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from etl.strategies.task import Task

Batch = tuple[np.ndarray, np.ndarray]


class Divided:
    """A loader of a rank's part of the records, shuffled by seed and epoch."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.epochs = 0

    def __len__(self) -> int:
        return len(self.part()) // self.task.batch_size

    def part(self) -> list[int]:
        """Return the records of this rank in this epoch."""
        order = np.random.default_rng([self.task.seed, self.epochs]).permutation(len(self.task.source))
        return [int(each) for each in order[self.task.rank :: self.task.world_size]]

    def __iter__(self) -> Iterator[Batch]:
        part, source, size = self.part(), self.task.source, self.task.batch_size
        self.epochs += 1
        for number in range(len(part) // size):
            self.before(number)
            records = [self.task.pipeline(source[each]) for each in part[number * size : (number + 1) * size]]
            yield np.stack([each["features"] for each in records]), np.stack([each["label"] for each in records])

    def before(self, number: int) -> None:
        """Do what a loader does wrong before its batch of this number."""


class Slow(Divided):
    """Rank 1 takes a tenth of a second longer for each batch."""

    def before(self, number: int) -> None:
        if self.task.rank == 1:
            time.sleep(0.1)


class Same(Divided):
    """Loads all records on each rank."""

    def part(self) -> list[int]:
        return list(range(len(self.task.source)))


class Fewer(Divided):
    """Rank 1 has a batch less than the others."""

    def part(self) -> list[int]:
        part = super().part()
        return part[: -self.task.batch_size] if self.task.rank == 1 else part


class Raises(Divided):
    """Rank 1 cannot read a record."""

    def before(self, number: int) -> None:
        if self.task.rank == 1 and number == 2:
            raise ValueError("3.jpg is no image")  # place: Raises


class Dies(Divided):
    """Rank 1 is killed."""

    def before(self, number: int) -> None:
        if self.task.rank == 1 and number == 2:
            os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Divided):
    """Rank 1 waits forever, in its third epoch: while it is measured."""

    def before(self, number: int) -> None:
        if self.task.rank == 1 and self.epochs == 3:
            time.sleep(600)  # place: Hangs


def make_step(task: Task) -> Callable[[Any], float]:
    """Return a training step that averages gradients with the other ranks, if there are any."""
    import torch
    from torch import distributed as dist

    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(4, 3)
    if task.world_size > 1:
        assert (dist.get_rank(), dist.get_world_size()) == (task.rank, task.world_size)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(batch: Any) -> float:
        features, labels = (torch.as_tensor(each) for each in batch)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(features), labels.long())
        loss.backward()
        optimizer.step()
        return float(loss)

    return step
