"""Batch boundaries: one between two training steps, for any loop and any iterator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import etl
from etl.runtime import batch_boundary
from etl.runtime.boundaries import at_batch_boundaries
from etl.training import Iteration
from tests.training.null_listener import NullListener

BATCHES = 4


def raw() -> etl.RawIterator:
    records = [{"features": np.zeros(3, np.float32), "label": 0} for _ in range(2 * BATCHES)]
    return etl.RawIterator(records, etl.Pipeline([]), batch_size=2)


class Foreign:
    """An iterator that announces no boundaries."""

    batch_size, dtype, epoch = 2, "float32", 0

    def __iter__(self) -> Iterator[etl.Batch]:
        for _ in range(BATCHES):
            yield etl.Batch(np.zeros((2, 3), np.float32), np.zeros(2, np.int64))


class Wrapping(Foreign):
    """A user's iterator around one of etl's."""

    def __iter__(self) -> Iterator[etl.Batch]:
        yield from raw()


ITERATORS: dict[str, Callable[[], Any]] = {
    "plain": raw,
    "synthetic": lambda: etl.SyntheticIterator((3,), 2, batches=BATCHES, batch_size=2),
    "async": lambda: etl.AsyncIterator(raw()),
    "on the device": lambda: etl.DeviceIterator(raw(), "cpu"),
    "foreign": Foreign,
    "around one of etl": Wrapping,
}


class Recorder(NullListener):
    """Records steps and boundaries in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def iteration_done(self, iteration: Iteration) -> None:
        self.events.append("step")

    def boundary(self) -> None:
        self.events.append("boundary")

    def between_steps(self) -> list[int]:
        """Boundaries between each two steps."""
        steps = [place for place, event in enumerate(self.events) if event == "step"]
        return [after - before - 1 for before, after in pairwise(steps)]


@pytest.mark.parametrize("name", ITERATORS)
def test_fit_has_one_boundary_a_batch_whatever_the_iterator(name: str) -> None:
    recorder = Recorder()
    with at_batch_boundaries(recorder.boundary):
        etl.fit(torch.nn.Linear(3, 2), ITERATORS[name](), backend="cpu", listeners=[recorder], epochs=2)
    assert recorder.events == ["step", "boundary"] * BATCHES * 2


@pytest.mark.parametrize("name", ["plain", "synthetic", "async", "on the device", "around one of etl"])
def test_a_loop_of_ones_own_over_iterators_of_etl_has_one_between_two_steps(name: str) -> None:
    recorder = Recorder()
    with at_batch_boundaries(recorder.boundary):
        for _ in ITERATORS[name]():
            recorder.events.append("step")
    assert recorder.between_steps() == [1] * (BATCHES - 1)


def test_a_loop_of_ones_own_over_other_iterators_has_those_that_it_announces() -> None:
    recorder = Recorder()
    with at_batch_boundaries(recorder.boundary):
        for _ in Foreign():
            recorder.events.append("step")
            batch_boundary()
    assert recorder.events == ["step", "boundary"] * BATCHES


def test_iterators_have_their_boundaries_again_after_fit_though_it_failed() -> None:
    def fail(*_: object) -> torch.Tensor:
        raise ArithmeticError

    recorder = Recorder()
    with at_batch_boundaries(recorder.boundary):
        with pytest.raises(ArithmeticError):
            etl.fit(torch.nn.Linear(3, 2), raw(), backend="cpu", loss=fail)
        assert recorder.events == []
        list(raw())
    assert recorder.events == ["boundary"] * (BATCHES + 1)
