"""Trainings on several ranks that examine themselves, for tests. Each rank writes its examinations to a folder."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import etl
from etl.doctor import Examination, examine
from tests.training.null_listener import NullListener
from tests.training.rank_jobs import make_model, raw

SLOW_SECONDS = 0.1


def save(examination: Examination, path: Path) -> None:
    path.write_text(json.dumps({**examination.as_dict(), "text": str(examination), "pid": os.getpid()}))


class Delayed:
    """This rank's batches, each after a wait of `seconds`."""

    def __init__(self, batches: Any, seconds: float) -> None:
        self.batches = batches
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            time.sleep(self.seconds)
            yield batch


def examine_a_model(folder: Path) -> None:
    """Examine a wrapped model on rank 1 alone, while rank 0 is busy."""
    rank = torch.distributed.get_rank()
    wrapped = torch.nn.parallel.DistributedDataParallel(make_model())
    if rank == 1:
        save(examine(wrapped, raw(64, 4).shard(1, 2), backend="cpu", batches=4), folder / "model")
    else:
        (folder / "busy").write_text(str(os.getpid()))
        while not (folder / "model").exists():
            sum(range(10_000))


def examine_a_step(folder: Path) -> None:
    """Examine a step of `DistributedDataParallel` on both ranks: rank 1 computes, and then loads, slowly."""
    rank = torch.distributed.get_rank()
    model = make_model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: etl.Batch, seconds: float) -> None:
        optimizer.zero_grad()
        time.sleep(seconds)
        features, labels = map(torch.from_numpy, batch)
        torch.nn.functional.cross_entropy(wrapped(features), labels).backward()
        optimizer.step()

    for slow in ("compute", "load"):
        compute, load = (SLOW_SECONDS * (slow == each and rank == 1) for each in ("compute", "load"))
        batches = Delayed(raw(64, 4).shard(rank, 2), load)
        examination = examine(
            iterator=batches, step=lambda batch, each=compute: step(batch, each), batches=4, try_remedies=True
        )
        save(examination, folder / f"{slow}{rank}")


class Examining(NullListener):
    """A listener that examines the training on one rank after the first epoch."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.rank = rank

    def epoch_done(self, epoch: int) -> None:
        if epoch == 0 and self.training.ranks.rank == self.rank:
            found = examine(self.training.model, self.training.iterator, backend="cpu", batches=4)
            save(found, self.folder / "fit")
            (self.folder / "cpus").write_text(json.dumps(sorted(os.sched_getaffinity(0))))


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    for examine_it in (examine_a_model, examine_a_step):
        examine_it(Path(sys.argv[1]))
    torch.distributed.destroy_process_group()
