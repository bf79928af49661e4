"""`fit` counts waits as ETL and steps as compute, and no time of an iteration is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import etl
from etl.sources import Record
from etl.training import Iteration, Performance
from etl.training import fit as fit_module
from etl.training.backends.cpu import CpuBackend
from tests.training.null_listener import NullListener

LIMIT_SECONDS = 30


class Clock:
    """Stands in for the module `time`: it goes on only when something in the test takes time, in milliseconds."""

    def __init__(self) -> None:
        self.milliseconds = 0

    def perf_counter(self) -> float:
        return self.milliseconds / 1000

    def spend(self, milliseconds: int) -> None:
        self.milliseconds += milliseconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fit_module, "time", clock)
    return clock


class SlowRecords:
    """Records that take `load` milliseconds each, and `first` more for the first that is read."""

    def __init__(self, clock: Clock, load: int, first: int = 0) -> None:
        self._clock, self._load, self._first = clock, load, first

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Record:
        self._clock.spend(self._load + self._first)
        self._first = 0
        return {"features": np.ones(2, np.float32), "label": 0}


class SlowModel(nn.Module):
    """A model whose step takes `compute` milliseconds."""

    def __init__(self, clock: Clock, compute: int) -> None:
        super().__init__()
        self._clock, self._compute = clock, compute
        self.dense = nn.Linear(2, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self._clock.spend(self._compute)
        logits: torch.Tensor = self.dense(features)
        return logits


class Recorder(NullListener):
    """Keeps every iteration, and takes `milliseconds` to do so."""

    needs_times = True

    def __init__(self, clock: Clock | None = None, milliseconds: int = 0) -> None:
        self.iterations: list[Iteration] = []
        self._clock, self._milliseconds = clock, milliseconds

    def iteration_done(self, iteration: Iteration) -> None:
        self.iterations.append(iteration)
        if self._clock is not None:
            self._clock.spend(self._milliseconds)

    def times(self) -> list[tuple[int, int, int]]:
        """ETL, compute and all of each iteration in milliseconds."""
        return [
            (round(each.etl_seconds * 1000), round(each.compute_seconds * 1000), round(each.seconds * 1000))
            for each in self.iterations
        ]


def test_without_prefetch_an_iteration_takes_its_load_and_its_compute(clock: Clock) -> None:
    recorder = Recorder()
    iterator = etl.RawIterator(SlowRecords(clock, 200), etl.Pipeline([]), 1)
    etl.fit(SlowModel(clock, 100), iterator, backend="cpu", listeners=[recorder])
    assert recorder.times() == [(200, 100, 300)] * 4


def test_the_wait_for_the_first_batch_is_etl_of_the_first_report(clock: Clock) -> None:
    reports: list[Performance] = []
    listener = etl.PerformanceListener(10, output=lambda line: None, on_report=reports.append)
    iterator = etl.RawIterator(SlowRecords(clock, 5, first=79_698), etl.Pipeline([]), 1)
    etl.fit(SlowModel(clock, 20), iterator, backend="cpu", listeners=[listener])
    assert [round(report.etl_seconds * 1000) for report in reports] == [79_703, 5]
    assert [round(report.iteration_seconds * 1000) for report in reports] == [79_723, 25]


def test_what_an_iterator_loads_when_it_is_started_is_etl_too(clock: Clock) -> None:
    class Eager(etl.RawIterator):
        def __iter__(self) -> Iterator[etl.Batch]:
            return iter(list(super().__iter__()))

    recorder = Recorder()
    etl.fit(
        SlowModel(clock, 10),
        Eager(SlowRecords(clock, 50), etl.Pipeline([]), 1),
        backend="cpu",
        listeners=[recorder],
    )
    assert recorder.times() == [(200, 10, 210), (0, 10, 10), (0, 10, 10), (0, 10, 10)]


def test_the_time_of_listeners_is_neither_etl_nor_compute_but_in_the_next_iteration(clock: Clock) -> None:
    recorder = Recorder(clock, milliseconds=7)
    iterator = etl.RawIterator(SlowRecords(clock, 3), etl.Pipeline([]), 1)
    etl.fit(SlowModel(clock, 2), iterator, backend="cpu", listeners=[recorder])
    assert recorder.times() == [(3, 2, 5), (3, 2, 12), (3, 2, 12), (3, 2, 12)]


@pytest.mark.parametrize(("needs_times", "waits"), [(True, 4 + 1), (False, 1)])
def test_the_device_is_waited_for_in_every_iteration_only_if_a_listener_needs_times(
    clock: Clock, needs_times: bool, waits: int
) -> None:
    class Deferring(CpuBackend):
        """Like a device that works asynchronously: waiting for it takes 30 ms."""

        waited = 0

        def synchronize(self) -> None:
            self.waited += 1
            clock.spend(30)

    recorder, backend = Recorder(), Deferring()
    recorder.needs_times = needs_times
    iterator = etl.RawIterator(SlowRecords(clock, 3), etl.Pipeline([]), 1)
    etl.fit(SlowModel(clock, 2), iterator, backend=backend, listeners=[recorder])
    assert backend.waited == waits
    compute = 32 if needs_times else 2
    assert recorder.times() == [(3, compute, 3 + compute)] * 4


def test_the_next_batch_is_loaded_while_the_model_computes() -> None:
    begun = [threading.Event() for _ in range(6)]

    class Records:
        def __len__(self) -> int:
            return len(begun)

        def __getitem__(self, index: int) -> Record:
            begun[index].set()
            return {"features": np.ones(2, np.float32), "label": 0}

    class Waiting(nn.Linear):
        calls = 0

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls < len(begun):
                assert begun[self.calls].wait(LIMIT_SECONDS), "the next batch was not begun during this step"
            return super().forward(features)

    iterator = etl.AsyncIterator(etl.RawIterator(Records(), etl.Pipeline([]), 1), 1)
    assert etl.fit(Waiting(2, 2), iterator, backend="cpu").samples == 6
