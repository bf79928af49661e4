"""The example: LeNet learns the digits, with the same losses for every way of loading them."""

from __future__ import annotations

from pathlib import Path

import pytest

import etl
from etl.examples import lenet_digits

pytestmark = pytest.mark.slow


def test_every_strategy_gives_the_same_losses_and_at_least_95_percent(digits: Path, tmp_path: Path) -> None:
    with etl.runtime.ThreadPolicy(1):  # two threads wait for each other on a machine with other work to do
        trained = lenet_digits.train_each(digits, tmp_path / "digits.store", etl.backend("cpu"), epochs=6)
    assert list(trained) == ["raw", "presaved", "async-raw", "async-presaved"]
    assert all(each.losses == trained["raw"].losses for each in trained.values())
    assert trained["raw"].losses[-1] < 0.1 * trained["raw"].losses[0]
    assert all(each.accuracy >= 0.95 for each in trained.values())
