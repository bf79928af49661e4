"""Machines and trainings for the tests of the doctor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from etl.doctor import Examination, Finding
from etl.doctor.machine import Machine, look_at_machine
from etl.loading.batch import Batch
from etl.runtime.resources import available_cpus

FEATURES, CLASSES = 64, 4


def quiet_machine() -> Machine:
    """This one, with nothing else at work and nothing set."""
    return replace(
        look_at_machine(seconds=0.0), variables={}, steal=0.0, others=0.0, processes=(), cpus=available_cpus()
    )


def mlp(dtype: torch.dtype = torch.float32, units: int = 1024) -> torch.nn.Module:
    """Wide enough for a step to take milliseconds."""
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, units),
        torch.nn.ReLU(),
        torch.nn.Linear(units, units),
        torch.nn.Linear(units, CLASSES),
    ).to(dtype)


def convolutional(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A network that oneDNN has kernels for, in float32 only."""
    model = torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 8, 8)),
        torch.nn.Conv2d(1, 64, 3, padding=1),
        torch.nn.Conv2d(64, 64, 3, padding=1),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(CLASSES),
    )
    model(torch.zeros(1, FEATURES))
    return model.to(dtype)


class Batches:
    """The same batch again and again, in memory; each is waited for `seconds`."""

    def __init__(self, size: int = 64, count: int = 12, dtype: str = "float32", seconds: float = 0.0) -> None:
        random = np.random.default_rng(0)
        self.batch = Batch(random.standard_normal((size, FEATURES)).astype(dtype), random.integers(0, CLASSES, size))
        self.count = count
        self.seconds = seconds

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.count):
            if self.seconds:  # a sleep of nothing lets others have the CPU
                time.sleep(self.seconds)
            yield self.batch


def finding(examination: Examination, check: str) -> Finding:
    """What one check found."""
    (found,) = (each for each in examination.findings if each.check == check)
    return found


class Slow(torch.nn.Module):
    """Computes for a known time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(FEATURES, CLASSES)
        self.seconds = seconds

    def forward(self, features: Any) -> Any:
        time.sleep(self.seconds)
        return self.dense(features)
