"""A training by two ranks that notes where it is, so that it can be killed there."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import etl
from etl.training import Checkpoint, EarlyStopping, Iteration, RankError, fit_parallel
from tests.training.null_listener import NullListener
from tests.training.rank_jobs import CLASSES, FEATURES, Labelled, sgd

RANKS, RECORDS, BATCH_SIZE, EPOCHS = 2, 24, 2, 2
ITERATIONS = EPOCHS * RECORDS // (RANKS * BATCH_SIZE)
# Of an iteration, and of a record to evaluate, so that a moment drawn at random meets each.
STEP_SECONDS, EVALUATION_SECONDS = 0.03, 0.005
# In the environment of every process of an attempt.
MARK = "TORTURED_TRAINING"
CHECKPOINT, OUTCOME, RESULT, TEMPORARY = "checkpoint", "outcome.json", "result", "temporary"
JOINED, RESUMED, TRAINED, SAVING, EVALUATING, ENDED = "joined", "resumed", "trained", "saving", "evaluating", "ended"


class Noted(NullListener):
    """A loss and a listener that writes to a file of each rank where it is, and which records it has trained on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, event: str, *values: int) -> None:
        line = " ".join(map(str, (event, *values)))
        with (self.folder / f"rank{self.rank}").open("a") as file:
            file.write(f"{line}\n")

    def loss(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if output.requires_grad:  # not in an evaluation
            epoch, position = self.training.position
            # Before the ranks meet: one that is killed after that has trained on these records.
            self.note(TRAINED, epoch - (position == 0), position, *labels.tolist())
        return torch.nn.functional.cross_entropy(output, labels % CLASSES)

    def training_started(self, training: Any) -> None:
        self.training, self.rank = training, training.ranks.rank
        self.note(JOINED)

    def iteration_done(self, iteration: Iteration) -> None:
        time.sleep(STEP_SECONDS)

    def state_dict(self) -> dict[str, Any]:
        self.note(SAVING)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.note(RESUMED)

    def epoch_done(self, epoch: int) -> None:
        self.note(EVALUATING, epoch)

    def fit_ended(self) -> None:
        self.note(ENDED)


class Slow(Labelled):
    """Records that take a moment to evaluate."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(EVALUATION_SECONDS)
        return {**super().__getitem__(index), "label": index % CLASSES}


def make_model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.Tanh(), torch.nn.Linear(256, CLASSES))


def make_batches() -> etl.RawIterator:
    return etl.RawIterator(Labelled(RECORDS), etl.Pipeline([]), BATCH_SIZE, shuffle=True)


def options(folder: Path) -> dict[str, Any]:
    """Arguments of `fit`."""
    noted = Noted(folder)
    held_out = etl.RawIterator(Slow(8), etl.Pipeline([]), BATCH_SIZE)
    stopping = EarlyStopping(patience=EPOCHS, evaluate=held_out)
    return {
        "backend": "cpu",
        "epochs": EPOCHS,
        "optimizer": sgd,
        "loss": noted.loss,
        "listeners": [noted, stopping, Checkpoint(folder / CHECKPOINT, every=1)],
    }


def train(folder: Path) -> None:
    """Train as one rank of a process group, as a user's script does."""
    model = make_model()
    etl.fit(model, make_batches(), **options(folder))
    if torch.distributed.get_rank() == 0:
        torch.save(model.state_dict(), folder / RESULT)


def run_fit_parallel(folder: Path, restarts: int, timeout: float) -> None:
    """Run `fit_parallel` as a program does, and write what came of it."""
    enter(folder)
    outcome: dict[str, Any] = {}
    try:
        result = fit_parallel(
            make_model, make_batches, workers=RANKS, timeout=timeout, restarts=restarts, **options(folder)
        )
        torch.save(result.state, folder / RESULT)
    except RankError as error:
        outcome = {"message": str(error), "rank": error.rank}
    (folder / OUTCOME).write_text(json.dumps(outcome))


def run_torchrun(folder: Path, restarts: int) -> None:
    """Run torchrun, in this process."""
    from torch.distributed.run import main

    enter(folder)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 2)
    main(
        [
            *(f"--nproc-per-node={RANKS}", f"--max-restarts={restarts}", f"--log-dir={folder / 'logs'}"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=localhost"),
            *(__file__, str(folder)),
        ]
    )


def run_rank(folder: Path, rank: int, meeting: Path) -> None:
    """Run one rank of a process group that is made here."""
    enter(folder)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    train(folder)


def enter(folder: Path) -> None:
    """Let this process and all that it starts be found by the mark, and make their temporary files in `folder`."""
    os.environ |= {MARK: str(folder), "TMPDIR": str(folder / TEMPORARY), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")  # which torch keeps
    tempfile.tempdir = None


def notes(folder: Path, rank: int) -> list[list[str]]:
    """Return the words of each line that `rank` has written."""
    file = folder / f"rank{rank}"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def count_records(folder: Path) -> Counter[tuple[int, int]]:
    """Return how often each record of each epoch was trained on; an iteration that was done again counts once."""
    iterations = {
        (rank, int(epoch), int(position)): numbers
        for rank in range(RANKS)
        for event, *values in notes(folder, rank)
        if event == TRAINED
        for epoch, position, *numbers in [values]
    }
    return Counter((epoch, int(number)) for (_, epoch, _), numbers in iterations.items() for number in numbers)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
