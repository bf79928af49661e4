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
from etl.training import Checkpoint, EarlyStopping, Iteration
from tests.training.null_listener import NullListener

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
                # Reads like an error of torch, of which another rank would be the cause.
                raise ConnectionResetError(f"gloo/transport: number {index} is bad")
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


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Noting(NullListener):
    """A source whose numbers are written to a file once they were trained on: a listener and a loss at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def loss(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.numbers = labels.tolist()
        return torch.nn.functional.cross_entropy(output, labels % CLASSES)

    def iteration_done(self, iteration: Iteration) -> None:
        with (self.folder / f"rank{self.training.ranks.rank}").open("a") as file:
            file.write(f"{iteration.epoch} {iteration.number} {' '.join(map(str, self.numbers))}\n")


def run_under_torchrun(folder: Path) -> None:
    """Do what a user's script does under torchrun."""
    noting = Noting(folder)
    source = Labelled(40, {21: "is killed"}, once=folder / "killed")
    batches = etl.RawIterator(source, etl.Pipeline([]), 4, shuffle=True)
    checkpoint = Checkpoint(folder / "checkpoint", every=1)
    result = etl.fit(make_model(), batches, backend="cpu", epochs=2, loss=noting.loss, listeners=[noting, checkpoint])
    if noting.training.ranks.rank == 0:
        (folder / "done").write_text(str(result.epochs))


class Uneven:
    """As many batches as the number of the rank, and one."""

    def __init__(self) -> None:
        self.batches = [(np.zeros((2, 6), np.float32), np.zeros(2, np.int64))] * (1 + int(os.environ["RANK"]))

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        return iter(self.batches)


def train_in_turns(folder: Path) -> None:
    """Train with torch alone, then with `fit` in several ways, in one process group; each rank saves what it has."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    found: dict[str, Any] = {"plain": plain_loop(raw(42).shard(rank, world_size))}

    def fit(name: str, batches: Any, model: torch.nn.Module | None = None, **options: Any) -> None:
        model = model or make_model()
        result = etl.fit(model, batches, **{"backend": "cpu", "optimizer": sgd, **options})
        found[name] = {"state": model.state_dict(), "scores": result.scores, "stopped": result.stopped}

    fit("averaged", raw(42), epochs=2, averaging_frequency=3, report_score_after_averaging=False)
    try:
        fit("uneven", Uneven())
    except ValueError as error:
        found["uneven"] = str(error)
    try:
        fit("seeds", raw(40, seed=rank))
    except ValueError as error:
        found["seeds"] = str(error)
    # 21 records for evaluation: two ranks repeat one of them.
    early = EarlyStopping(max_epochs=3, evaluate=raw(21, 5))
    fit("early", raw(40, 4), epochs=None, listeners=[early])
    found["early"] |= {"epochs": early.scores, "best": early.best_epoch}
    fit("timed", raw(40), epochs=None, listeners=[EarlyStopping(max_seconds=0.05)])
    model = make_model()
    fit("once", raw(40), model)
    fit("twice", raw(40), model)  # the wrapper of the first fit must not go on averaging
    torch.save(found, folder / f"rank{rank}")
    torch.distributed.destroy_process_group()


def plain_loop(batches: Any) -> dict[str, Any]:
    """Train with torch alone, and return the state of the model."""
    model = make_model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = sgd(model)
    for _ in range(2):
        for features, labels in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(wrapped(torch.from_numpy(features)), torch.from_numpy(labels)).backward()
            optimizer.step()
    return model.state_dict()


if __name__ == "__main__":
    {"torchrun": run_under_torchrun, "turns": train_in_turns}[sys.argv[1]](Path(sys.argv[2]))
