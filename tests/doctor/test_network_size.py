"""The doctor compares a network with each of the guide's limits, and advises to truncate long backpropagation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from etl.doctor import Finding, Severity
from etl.doctor.checks import network
from etl.doctor.checks.network import NetworkSize
from etl.loading.batch import Batch
from tests.doctor_cases import look

RECORDS, INPUTS = 2, 4


class Recurrent(torch.nn.Module):
    """An LSTM and a dense layer on its last step; tokens are embedded first."""

    def __init__(self, units: int = 8, layers: int = 1, tokens: bool = False) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, INPUTS) if tokens else torch.nn.Identity()
        self.lstm = torch.nn.LSTM(INPUTS, units, layers, batch_first=True)
        self.dense = torch.nn.Linear(units, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.lstm(self.embedding(features))
        last: torch.Tensor = self.dense(outputs[:, -1])
        return last


def look_at(model: torch.nn.Module, features: np.ndarray) -> Finding:
    return look(NetworkSize(), model, [Batch(features, np.zeros(len(features), np.int64))] * 3)


def sequences(steps: int) -> np.ndarray:
    return np.zeros((RECORDS, steps, INPUTS), np.float32)


def images(side: int = 8, channels: int = 1) -> np.ndarray:
    return np.zeros((RECORDS, channels, side, side), np.float32)


def convolution(channels: int = 1, kernel: int = 1) -> torch.nn.Module:
    padding = kernel // 2
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, channels, kernel, padding=padding),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(channels, 2),
    )


def many_parameters() -> torch.nn.Module:
    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = torch.nn.Linear(INPUTS, 2)
            # Never touched, so it takes no memory.
            self.table = torch.nn.Parameter(torch.empty(100_000_001, dtype=torch.int8), requires_grad=False)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.dense(features)
            return outputs

    return Large()


@pytest.mark.parametrize(
    ("make", "features", "found"),
    [
        (lambda: Recurrent(layers=11), sequences(3), "11 recurrent layers, more than about 10"),
        (lambda: Recurrent(units=1025), sequences(1), "1,025 units in a recurrent layer, more than about 1,024"),
        (lambda: convolution(kernel=9), images(), "9 pixels a side of a kernel, more than about 7"),
        (lambda: convolution(channels=1025), images(2), "1,025 channels, more than about 1,024"),
        (
            many_parameters,
            np.zeros((RECORDS, INPUTS), np.float32),
            "100,000,011 parameters, more than about 100,000,000",
        ),
    ],
    ids=["layers", "recurrent units", "kernel", "channels", "parameters"],
)
def test_each_limit_of_the_guide(make: Callable[[], torch.nn.Module], features: np.ndarray, found: str) -> None:
    finding = look_at(make(), features)
    assert (finding.severity, finding.found) == (Severity.NOTE, found)
    assert str(finding.remedy).startswith("try a smaller network")


@pytest.mark.parametrize("is_tokens", [False, True], ids=["vectors", "tokens"])
def test_long_sequences_are_advised_to_be_truncated(is_tokens: bool) -> None:
    features = np.zeros((RECORDS, 600), np.int64) if is_tokens else sequences(600)
    found = look_at(Recurrent(tokens=is_tokens), features)
    assert (found.severity, found.found) == (Severity.NOTE, "600 time steps, more than about 500")
    assert "truncate backpropagation: train on parts of some 200 steps" in str(found.remedy)
    assert "smaller network" not in str(found.remedy)
    assert "backpropagation through 600 steps keeps 0." in found.evidence


def test_what_backpropagation_keeps_grows_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "MAX_STEPS", 50)

    def kept(steps: int) -> float:
        evidence = look_at(Recurrent(units=64), sequences(steps)).evidence
        return float(evidence.partition(" steps keeps ")[2].partition(" MB")[0])

    assert kept(240) == pytest.approx(2 * kept(120), rel=0.2)


def test_pixels_are_no_time_steps() -> None:
    assert look_at(convolution(), images(16)).severity is Severity.FINE
