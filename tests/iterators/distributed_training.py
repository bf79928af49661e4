"""One rank of real trainings and evaluations under torch.distributed: `python distributed_training.py FOLDER RANK`.

FOLDER has `cases.json`, a list of which iterator is made, of how many records, and a store of these for each number.
"""

from __future__ import annotations

import datetime
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import etl

WORLD_SIZE = 2
BATCH_SIZE = 8
EPOCHS = 2
# Of waiting for another rank. It ends a rank that hangs, with an error.
LIMIT_SECONDS = 40


class Numbered:
    """Records told by their number; those in `bad` cannot be loaded."""

    def __init__(self, count: int, bad: list[int]) -> None:
        self.count = count
        self.bad = frozenset(bad)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.bad:
            raise OSError(f"number {index} is bad")
        return {"features": np.full(3, index, np.float32), "label": index}


def make_iterator(folder: Path, case: dict[str, Any]) -> etl.BatchIterator:
    options: dict[str, Any] = {"on_error": case["on_error"], "shuffle": case["shuffle"]}
    if case["strategy"] == "presaved":
        return etl.PresavedIterator(folder / f"store{case['count']}", etl.Pipeline([]), BATCH_SIZE, **options)
    raw = etl.RawIterator(Numbered(case["count"], case["bad"]), etl.Pipeline([]), BATCH_SIZE, **options)
    if case["strategy"] == "threads":
        return etl.AsyncIterator(raw, threads=2)
    return etl.AsyncIterator(raw, workers="process", processes=1) if case["strategy"] == "processes" else raw


def train(folder: Path, case: dict[str, Any], rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(3, case["count"]))
    delivered = torch.zeros(case["count"])
    with make_iterator(folder, case) as whole, whole.shard(rank, WORLD_SIZE) as part:
        # Small features: what is learnt must stay finite.
        fitted = etl.fit(model, part, backend="cpu", epochs=EPOCHS, learning_rate=1e-6)
        lengths = []
        for batch in part:
            lengths.append(len(batch))
            keep = slice(None) if batch.repeated is None else ~batch.repeated
            delivered[torch.from_numpy(batch.labels[keep])] += 1
        dist.all_reduce(delivered)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {
        "steps": len(fitted.scores),
        "samples": fitted.samples,
        "weights": weights.tolist(),
        "lengths": lengths,
        "delivered": delivered.int().tolist(),
    }


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # each epoch says what it has left out
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=datetime.timedelta(seconds=LIMIT_SECONDS),
    )
    try:
        found = [train(folder, case, rank) for case in json.loads((folder / "cases.json").read_text())]
    finally:
        dist.destroy_process_group()
    (folder / f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
