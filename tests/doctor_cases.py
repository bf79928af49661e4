"""Machines and trainings for the tests of the doctor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

import etl
from etl.doctor import Examination, Finding
from etl.doctor.check import Case, Check
from etl.doctor.machine import Machine, look_at_machine
from etl.doctor.observation import observe_training
from etl.doctor.setup import make_setup
from etl.loading.batch import Batch
from etl.runtime.resources import available_cpus

FEATURES, CLASSES = 64, 4


@cache
def quiet_machine() -> Machine:
    """Return this machine, as if nothing else ran on it and no variable were set."""
    return replace(
        look_at_machine(seconds=0.0),
        variables={},
        steal=0.0,
        other_processes=0.0,
        busy_processes=(),
        cpus=available_cpus(),
    )


def mlp(dtype: torch.dtype = torch.float32, units: int = 1024) -> torch.nn.Module:
    """Return a perceptron, by default wide enough for a step to take milliseconds."""
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, units),
        torch.nn.ReLU(),
        torch.nn.Linear(units, units),
        torch.nn.Linear(units, CLASSES),
    ).to(dtype)


def convolutional(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """Return a network that oneDNN has kernels for, in float32 only."""
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
    """The same batch again and again, each after a wait of `seconds`."""

    def __init__(self, size: int = 64, count: int = 12, dtype: str = "float32", seconds: float = 0.0) -> None:
        random = np.random.default_rng(0)
        self.batch = Batch(random.standard_normal((size, FEATURES)).astype(dtype), random.integers(0, CLASSES, size))
        self.count = count
        self.seconds = seconds

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.count):
            if self.seconds:  # a sleep of 0 s would give up the CPU
                time.sleep(self.seconds)
            yield self.batch


def case_of(model: torch.nn.Module, batches: Any, count: int = 6) -> Case:
    """Return the case of a training on the CPU, observed for this number of batches."""
    setup = make_setup(model, batches, etl.backend("cpu"), None)
    return Case(quiet_machine(), setup, observe_training(model, setup, count))


def look(check: Check, model: torch.nn.Module, batches: Any) -> Finding:
    """Return the finding of one check alone, of a training on the CPU."""
    return check.look(case_of(model, batches))


@contextmanager
def predicting(model: Callable[[torch.Tensor], Any], clients: int = 1, records: int = 1) -> Iterator[None]:
    """Let threads predict with `model` meanwhile, each with this number of records at a time."""
    done = threading.Event()

    def predict() -> None:
        while not done.is_set():
            with torch.no_grad():
                model(torch.zeros(records, FEATURES))

    threads = [threading.Thread(target=predict) for _ in range(clients)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        done.set()
        for each in threads:
            each.join()


def finding(examination: Examination, check: str) -> Finding:
    """Return the finding of one check."""
    (found,) = (each for each in examination.findings if each.check == check)
    return found


class Slow(torch.nn.Module):
    """A module whose forward pass takes a known time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(FEATURES, CLASSES)
        self.seconds = seconds

    def forward(self, features: Any) -> Any:
        time.sleep(self.seconds)
        return self.dense(features)
