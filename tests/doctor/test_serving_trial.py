"""The doctor measures ParallelInference where several threads use one model."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from etl.doctor import Severity, examine
from etl.doctor.check import Case
from etl.doctor.checks import forward_pass
from etl.doctor.checks.forward_pass import SharedModel
from etl.doctor.setup import ModelSetup
from tests.doctor_cases import Batches, case_of, mlp, predicting


class Serial(torch.nn.Module):
    """A model whose calls wait for each other, as behind a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(units=8)

    def forward(self, features: Any) -> Any:
        # Each copy of the model has a lock of its own; a lock itself cannot be copied.
        lock = LOCKS.setdefault(id(self), threading.Lock())
        with lock:
            time.sleep(0.002)
        return self.inner(features)


LOCKS: dict[int, threading.Lock] = {}


def served_case(clients: int, records: int) -> Case:
    """Return the case of a training beside which threads predict with the same model."""
    model = Serial()
    with predicting(model, clients, records):
        return case_of(model, Batches(), 4)


def test_answers_of_a_shared_model_and_of_the_server_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_pass, "SERVING_SECONDS", 0.1)
    case = served_case(clients=4, records=3)
    assert case.observation is not None
    assert case.observation.trace is not None
    assert case.observation.trace.predicted_records == 3
    found = SharedModel().look(case)
    assert found.severity is Severity.SERIOUS
    assert re.match("[2-5] threads call ", found.found)
    assert "etl.training.ParallelInference" in str(found.remedy)
    assert "the guide's step 6" in found.evidence
    trial = SharedModel().measure(case)
    assert trial is not None
    assert trial.unit == "an answer"
    assert trial.without_seconds >= 0.002
    assert trial.low <= trial.ratio <= trial.high


def test_an_error_of_a_prediction_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    case = served_case(clients=1, records=1)
    SharedModel().look(case)
    assert case.observation is not None
    batch = replace(case.observation.batch, features=case.observation.batch.features[:, :3])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        SharedModel().measure(replace(case, observation=replace(case.observation, batch=batch)))


class Hanging(Serial):
    """A model that does not return until it is released."""

    def __init__(self, released: threading.Event) -> None:
        super().__init__()
        self.released = released

    def __deepcopy__(self, memo: Any) -> Hanging:
        return self

    def forward(self, features: Any) -> Any:
        self.released.wait()
        return features


def test_a_prediction_that_does_not_return_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_pass, "ANSWER_PATIENCE_SECONDS", 0.2)
    case = served_case(clients=2, records=1)
    SharedModel().look(case)
    assert isinstance(case.setup, ModelSetup)
    released = threading.Event()
    with pytest.raises(
        TimeoutError, match=r"not answered any of 2 threads for 0\.2 s; those that wait for it are left"
    ):
        SharedModel().measure(replace(case, setup=replace(case.setup, model=Hanging(released))))
    released.set()


class Several(Serial):
    """A model with several outputs."""

    def forward(self, features: Any) -> Any:
        outputs = super().forward(features)
        return {"outputs": outputs, "features": (features, outputs)}


def test_models_of_several_outputs_are_served_too_however_late_their_threads_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward_pass, "SERVING_SECONDS", 0.0)
    case = served_case(clients=2, records=1)
    SharedModel().look(case)
    assert isinstance(case.setup, ModelSetup)
    served = replace(case, setup=replace(case.setup, model=Several()))
    assert SharedModel().measure(served) is not None


def test_threads_that_train_are_not_served() -> None:
    assert SharedModel().measure(case_of(mlp(), Batches())) is None


def test_the_trial_is_part_of_an_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etl.doctor.examination.CHECKS", (SharedModel(),))
    monkeypatch.setattr(forward_pass, "SERVING_SECONDS", 0.1)
    model = mlp()
    shown: list[Any] = []
    with predicting(model):
        (found,) = examine(
            model, Batches(), backend="cpu", batches=4, try_remedies=True, progress=lambda *each: shown.append(each)
        ).findings
    assert shown[-1] == (f"trying: {found.remedy}", 0, 1)
    assert found.trial is not None
    assert found.trial_failed is None
    assert found.saves_seconds is None
