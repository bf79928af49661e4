"""`fit` that fails: the error arrives as it was raised, and nothing is left running or watching."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

import etl
from etl.sources import Record, RecordError
from etl.training import Iteration
from tests.leftovers import prefetch_threads

SHAPE = (1, 28, 28)


class Unreadable:
    """Records, of which number 21 cannot be read."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Record:
        if index == 21:
            raise OSError("the disk is gone")
        return {"features": np.zeros(SHAPE, np.float32), "label": 0}


class Readable(Unreadable):
    """The same without the fault."""

    def __getitem__(self, index: int) -> Record:
        return {"features": np.zeros(SHAPE, np.float32), "label": 0}


class Following:
    """A listener that records its calls, and fails at the one it is asked to."""

    needs_times = False

    def __init__(self, fails_at: str = "") -> None:
        self.told: list[str] = []
        self._fails_at = fails_at

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if what == self._fails_at:
            raise RuntimeError(f"the listener fails at {what}")

    def fit_started(self) -> None:
        self._tell("started")

    def iteration_done(self, iteration: Iteration) -> None:
        self._tell(f"iteration {iteration.number}")

    def fit_ended(self) -> None:
        self._tell("ended")


def small_model() -> torch.nn.Module:
    return etl.models.create("mlp", SHAPE, 2)


def over(source: Unreadable, *, ahead: int = 0) -> etl.AsyncIterator:
    return etl.AsyncIterator(etl.RawIterator(source, etl.Pipeline([]), 4), ahead)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_record_that_cannot_be_loaded_ends_the_fit_at_its_batch_and_is_named(ahead: int) -> None:
    listener = Following()
    with pytest.raises(RecordError, match="record 21 of Unreadable: failed at stage 'read': the disk is gone") as e:
        etl.fit(small_model(), over(Unreadable(), ahead=ahead), backend="cpu", listeners=[listener])
    assert listener.told == ["started", *(f"iteration {number}" for number in range(5)), "ended"]
    assert isinstance(e.value.__cause__, OSError)
    # The exception and its traceback, with every frame of the fit, are still held here.
    assert prefetch_threads() == []


def test_a_model_that_fails_leaves_no_thread_though_its_traceback_is_held() -> None:
    wrong = etl.models.create("mlp", (3, 3), 2)
    with pytest.raises(RuntimeError, match="cannot be multiplied") as error:
        etl.fit(wrong, over(Readable(), ahead=3), backend="cpu")
    assert prefetch_threads() == []
    assert error.tb is not None


def test_a_model_that_returns_more_than_one_tensor_is_named_with_what_to_do() -> None:
    class Several(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = torch.nn.Linear(4, 2)

        def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.dense(features), features

    batches = [(np.zeros((2, 4), np.float32), np.zeros(2, np.int64))]
    with pytest.raises(ValueError, match=r"the model returns a tuple of 2, .*; give a loss of your own \(loss=\)"):
        etl.fit(Several(), batches, backend="cpu")


@pytest.mark.parametrize("fails_at", ["started", "iteration 0", "ended"])
def test_every_listener_that_was_started_is_ended_whichever_of_them_fails(fails_at: str) -> None:
    first, failing, last = Following(), Following(fails_at), Following()
    with pytest.raises(RuntimeError, match=f"fails at {fails_at}"):
        etl.fit(small_model(), over(Readable()), backend="cpu", listeners=[first, failing, last])
    assert first.told[-1] == "ended"
    assert last.told == [] if fails_at == "started" else last.told[-1] == "ended"


@pytest.mark.parametrize("lines", [0, 1])
def test_a_performance_listener_whose_output_fails_watches_collections_no_longer(lines: int, tmp_path: Path) -> None:
    before = list(gc.callbacks)
    with (tmp_path / "log").open("w") as log:

        def write(line: str) -> None:
            if log.tell() >= lines:
                log.close()
            log.write(line)

        listener = etl.PerformanceListener(1000, output=write)
        with pytest.raises(ValueError, match="closed file"):
            etl.fit(small_model(), over(Readable()), backend="cpu", listeners=[listener])
    assert gc.callbacks == before


def test_a_learning_rate_beside_an_optimizer_that_has_its_own_is_refused_and_the_model_untouched() -> None:
    model = etl.models.create("mlp", (4,), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    iterator = etl.SyntheticIterator((4,), 2, batches=1, dtype="float64")
    with pytest.raises(ValueError, match=r"learning_rate=0.5 has no effect"):
        etl.fit(model, iterator, backend="cpu", optimizer=optimizer, learning_rate=0.5)
    with pytest.raises(ValueError, match="unknown optimizer 'sdg'; known: sgd, adam"):
        etl.fit(model, iterator, backend="cpu", optimizer="sdg")
    assert next(model.parameters()).dtype == torch.float32
