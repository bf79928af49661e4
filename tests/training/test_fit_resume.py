"""`fit` resumes from a state: interrupted and resumed training equals uninterrupted training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etl
import presave
from etl.iterators import BatchIterator
from etl.iterators.iterator import State
from etl.sources import Record
from etl.training import Iteration
from tests.training.null_listener import NullListener

pytestmark = pytest.mark.usefixtures("one_thread")
RECORDS, BATCH, BATCHES = 26, 4, 7


def examples() -> list[Record]:
    random = np.random.default_rng(3)
    return [{"features": random.random(6, dtype=np.float32), "label": number % 3} for number in range(RECORDS)]


def make(strategy: str, folder: Path) -> BatchIterator:
    iterator: BatchIterator
    if "presaved" in strategy:
        path = folder / "examples.store"
        if not path.exists():
            presave.write(path, examples()).close()
        iterator = etl.PresavedIterator(path, etl.Pipeline([]), BATCH, shuffle=True, seed=1)
    else:
        iterator = etl.RawIterator(examples(), etl.Pipeline([]), BATCH, shuffle=True, seed=1)
    return etl.AsyncIterator(iterator, 2) if "async" in strategy else iterator


class StopTrainingError(Exception):
    """Ends training in these tests."""


class Saver(NullListener):
    """After iteration `at`: keeps the iterator's state, the model's and the scores, then ends the fit."""

    def __init__(self, iterator: BatchIterator, model: torch.nn.Module, at: int) -> None:
        self._iterator, self._model, self._at = iterator, model, at
        self.scores: list[float] = []
        self.state: State = {}
        self.weights: dict[str, Any] = {}

    def iteration_done(self, iteration: Iteration) -> None:
        self.scores.append(iteration.score.item())
        if iteration.number == self._at:
            self.state = json.loads(json.dumps(self._iterator.state_dict()))
            self.weights = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}
            raise StopTrainingError


@pytest.mark.parametrize("at", [0, 3, BATCHES - 1, BATCHES + 2])
@pytest.mark.parametrize("strategy", ["raw", "raw async", "presaved", "presaved async"])
def test_training_interrupted_and_resumed_has_the_scores_of_training_at_one_go(
    strategy: str, at: int, tmp_path: Path
) -> None:
    with make(strategy, tmp_path) as whole:
        expected = etl.fit(etl.models.create("mlp", (6,), 3), whole, backend="cpu", epochs=2).scores

    model = etl.models.create("mlp", (6,), 3)
    with make(strategy, tmp_path) as iterator:
        saver = Saver(iterator, model, at)
        with pytest.raises(StopTrainingError):
            etl.fit(model, iterator, backend="cpu", listeners=[saver], epochs=2)

    fresh = etl.models.create("mlp", (6,), 3, seed=9)
    fresh.load_state_dict(saver.weights)
    with make(strategy, tmp_path) as iterator:
        iterator.load_state_dict(saver.state)
        rest = etl.fit(fresh, iterator, backend="cpu", epochs=2 - saver.state["epoch"])
    assert saver.scores + rest.scores == expected
    assert rest.samples == 2 * RECORDS - sum(BATCH if number % BATCHES < 6 else 2 for number in range(at + 1))
