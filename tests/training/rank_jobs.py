"""Jobs of the ranks of real trainings, for tests."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import etl

FEATURES, CLASSES = 6, 4
SIGNALS = {"is killed": signal.SIGKILL, "is terminated": signal.SIGTERM, "is stopped": signal.SIGSTOP}


class Numbered:
    """Records that are told by their number; each load of one is noted in a folder, if there is one.

    At a number of `trouble`, the process raises, gets a signal or hangs: once if `once` names a file.
    """

    def __init__(self, count: int, trouble: dict[int, str] | None = None, once: Path | None = None) -> None:
        self._count = count
        self._trouble = trouble or {}
        self._once = once

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self._trouble and not (self._once and self._once.exists()):
            if self._once:
                self._once.touch()
            kind = self._trouble[index]
            if kind == "raises":
                raise OSError(f"number {index} is bad")
            if kind in SIGNALS:
                os.kill(os.getpid(), SIGNALS[kind])
            if kind == "exits":
                os._exit(7)
            time.sleep(600)
        features = np.random.default_rng(index).standard_normal(FEATURES).astype(np.float32)
        return {"features": features, "label": index % CLASSES}


class Labelled(Numbered):
    """Records whose label is their number."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "label": index}


def make_model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, CLASSES))


def raw(count: int, batch_size: int = 4, **options: Any) -> etl.RawIterator:
    return etl.RawIterator(Numbered(count), etl.Pipeline([]), batch_size, shuffle=True, **options)


class Noting:
    """A source whose numbers are written to a file once they were trained on: a listener and a loss at once."""

    needs_times = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def loss(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.numbers = labels.tolist()
        return torch.nn.functional.cross_entropy(output, labels % CLASSES)

    def training_started(self, training: Any) -> None:
        self.rank, self.iterator = training.ranks.rank, training.iterator

    def fit_started(self) -> None:
        """Do nothing."""

    def iteration_done(self, iteration: Any) -> None:
        with (self.folder / f"rank{self.rank}").open("a") as file:
            file.write(f"{iteration.epoch} {iteration.number} {' '.join(map(str, self.numbers))}\n")

    def fit_ended(self) -> None:
        """Do nothing."""


def run_under_torchrun(folder: Path) -> None:
    """Do what a user's script does under torchrun."""
    noting = Noting(folder)
    source = Labelled(40, {21: "is killed"}, once=folder / "killed")
    batches = etl.RawIterator(source, etl.Pipeline([]), 4, shuffle=True)
    checkpoint = etl.Checkpoint(folder / "checkpoint", every=1)
    result = etl.fit(make_model(), batches, backend="cpu", epochs=2, loss=noting.loss, listeners=[noting, checkpoint])
    if noting.rank == 0:
        (folder / "done").write_text(str(result.epochs))


def run_plain_loop(folder: Path) -> None:
    """Train with torch alone, on the same shards, and save the model of rank 0."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = make_model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    part = raw(42).shard(rank, world_size)
    for _ in range(2):
        for features, labels in part:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(wrapped(torch.from_numpy(features)), torch.from_numpy(labels)).backward()
            optimizer.step()
    if rank == 0:
        torch.save(model.state_dict(), folder / "plain")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    {"torchrun": run_under_torchrun, "plain": run_plain_loop}[sys.argv[1]](Path(sys.argv[2]))
