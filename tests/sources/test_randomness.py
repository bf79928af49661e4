"""The check for random transforms inside a data set."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etl
from etl.sources import Record
from etl.sources.randomness import is_random


class Transformed:
    """Pairs whose features are what `transform` returns for the record's number, and their label."""

    name = "my_data:dataset"

    def __init__(self, transform: Callable[[int], Any], count: int = 31) -> None:
        self.transform = transform
        self.count = count
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Record:
        self.read.append(index)
        return {"features": (np.ones(2), self.transform(index)), "label": index}


@pytest.mark.parametrize(
    "draw",
    [
        random.random,
        lambda: np.random.rand(2),  # noqa: NPY002
        lambda: torch.rand(3).numpy(),
        lambda: np.random.default_rng().random(2),
        lambda: np.zeros(random.randrange(1, 1000)),
    ],
    ids=["python", "numpy", "torch", "unseeded", "shape"],
)
def test_the_first_record_and_field_that_differ_are_named(draw: Callable[[], Any]) -> None:
    source = Transformed(lambda index: draw() if index >= 6 else 0.0)
    assert is_random(source) == (
        "record 6 of my_data:dataset differs from one reading to the next, in 'features.1', so presaving would freeze "
        "its random transforms"
    )


@pytest.mark.parametrize(
    "transform",
    [
        float,
        lambda index: np.full(2, np.nan),
        lambda index: np.random.default_rng(index).random(3),
    ],
)
def test_records_that_stay_the_same_are_not_random(transform: Callable[[int], Any]) -> None:
    assert is_random(Transformed(transform)) is None


def test_it_reads_evenly_spaced_records_twice_and_leaves_out_those_that_fail() -> None:
    def transform(index: int) -> float:
        if index == 10:
            raise OSError("unreadable")
        return float(index)

    source = Transformed(transform)
    assert is_random(source) is None
    assert source.read == [*range(0, 31, 2)] * 2
    small = Transformed(transform, count=3)
    assert is_random(small) is None
    assert small.read == [0, 1, 2] * 2


def test_random_states_are_restored() -> None:
    def numbers() -> list[float]:
        return [random.random(), np.random.rand(), float(torch.rand(()))]  # noqa: NPY002

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)

    seed()
    expected = numbers()
    seed()
    assert is_random(Transformed(lambda index: sum(numbers()))) is not None
    assert numbers() == expected


def test_a_data_set_of_torch_is_checked_and_files_are_not(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Flipped:
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> Any:
            image = torch.arange(6).reshape(2, 3)
            return (image.flip(1) if torch.rand(()) < 0.5 else image), index

    assert "of Flipped differs" in str(is_random(etl.MapDataset(Flipped())))
    monkeypatch.setattr(etl.ImageFolder, "__getitem__", None)
    assert is_random(etl.ImageFolder(photographs)) is None
