"""Strategies that other packages register as entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etl.strategies import Strategy, entry_points
from tests.user_modules import write_package

PLUGIN = """
    from etl.strategies import Strategy

    def load(task):
        return [[1, 2], [3]]

    ahead = Strategy("fast-raw", reads="source", ahead="thread")
    number = 3
"""


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    values = {"fast": "fast_loaders:load", "fast-raw": "fast_loaders:ahead", "number": "fast_loaders:number"}
    write_package(tmp_path / "site", "fast_loaders", PLUGIN, {"etl.strategies": {**values, "gone": "fast_loads:load"}})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("fast_loaders", None)


def test_they_are_listed_without_being_imported() -> None:
    found = entry_points.registered()
    assert {"fast", "fast-raw", "number", "gone"} <= found.keys()
    assert found["fast"].value == "fast_loaders:load"
    assert "fast_loaders" not in sys.modules


def test_a_function_or_a_strategy_is_loaded_by_name() -> None:
    load: Any = entry_points.load("fast")
    assert load(None) == [[1, 2], [3]]
    assert entry_points.load("fast-raw") == Strategy("fast-raw", reads="source", ahead="thread")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "no strategy is registered as 'absent'; registered are: .*fast.*Install the package"),
        ("number", "strategy 'number' is registered as a int; it must be an etl.strategies.Strategy, or a function"),
        ("gone", "strategy 'gone', which is fast_loads:load, cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_is_said(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entry_points.load(name)
