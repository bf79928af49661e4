"""The heap report: objects by type, leaks by name, and pauses by generation."""

from __future__ import annotations

import gc
import time

import pytest
import torch

from etl.doctor import steps
from etl.doctor.heap import look_at_heap, watch_pauses
from etl.doctor.setup import make_setup
from etl.training.backends import backend
from tests.doctor_cases import Batches, mlp


class Forgotten:
    """An object that a training keeps by mistake."""

    def __init__(self) -> None:
        self.payload = bytearray(1000)


def test_objects_and_their_bytes_are_counted_by_type() -> None:
    kept = [Forgotten() for _ in range(500)]
    heap = look_at_heap(lambda: None)
    (own,) = (each for each in heap.types if each.name.endswith("Forgotten"))
    assert own.count == len(kept) == 500
    (payload,) = (each for each in heap.types if each.name == "bytearray")
    assert payload.nbytes >= 500 * 1000
    assert [each.nbytes for each in heap.types] == sorted((each.nbytes for each in heap.types), reverse=True)
    assert heap.leaks == []


def test_a_leak_is_named_by_its_type() -> None:
    kept: list[Forgotten] = []
    cache: list[list[int]] = []

    def epoch() -> None:
        kept.extend(Forgotten() for _ in range(20))
        if not cache:  # a cache that the first epoch fills is no leak
            cache.extend([[] for _ in range(1000)])

    heap = look_at_heap(epoch)
    (leak,) = (each for each in heap.leaks if each.name.endswith("Forgotten"))
    assert leak.per_epoch == [20, 20, 20]
    assert not any(each.name == "list" for each in heap.leaks)


class Collecting(torch.nn.Module):
    """A module that runs the garbage collector in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        gc.collect(1)
        result: torch.Tensor = self.inner(features)
        return result


def test_pauses_are_counted_by_generation_and_batch() -> None:
    pauses = watch_pauses(make_setup(Collecting(), Batches(), backend("cpu"), None), 6)
    assert pauses.generations[1].count >= 6
    assert pauses.generations[1].longest_seconds <= pauses.generations[1].seconds
    assert len(pauses.per_batch) == 6
    assert all(each > 0 for each in pauses.per_batch)
    assert sum(pauses.per_batch) < pauses.seconds


def test_a_pause_counts_for_its_batch_even_if_the_loop_is_slow_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow() -> int:
        time.sleep(0.02)
        return 0

    monkeypatch.setattr(steps, "_minor_faults", slow)
    pauses = watch_pauses(make_setup(Collecting(), Batches(), backend("cpu"), None), 4)
    assert all(each > 0 for each in pauses.per_batch)
