"""Strategies that other packages register as entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import etl
from etl import strategies
from etl.comparison.request.candidates import Candidate
from etl.functions import find_function
from etl.strategies import Strategy, strategy
from tests.comparison_workloads import write_table
from tests.user_modules import write_package

PLUGIN = """
    from etl.strategies import Strategy, strategy

    def load(task):
        return [[1, 2], [3]]

    ahead = Strategy("fast-raw", reads="source", ahead="thread")
    number = 3
"""


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    values = {
        "fast": "fast_loaders:load",
        "extra": "fast_loaders:load [turbo]",
        "fast-raw": "fast_loaders:ahead",
        "quick-raw": "fast_loaders:ahead",
        "number": "fast_loaders:number",
    }
    monkeypatch.setattr(strategy, "_strategies", dict(strategy._strategies))
    write_package(tmp_path / "site", "fast_loaders", PLUGIN, {"etl.strategies": {**values, "gone": "fast_loads:load"}})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("fast_loaders", None)


def test_they_are_listed_after_those_of_this_package_without_being_imported() -> None:
    names = strategies.names()
    assert names[0] == "raw"
    assert {"fast", "fast-raw", "number", "gone"} <= set(names)
    assert "fast_loaders" not in sys.modules
    assert not {"fast", "fast-raw"} & set(strategies.default_names())


def test_a_function_becomes_a_loader_of_the_user_with_the_registered_name() -> None:
    fast = strategies.find("fast")
    assert fast == Strategy("fast", reads="source", function="fast_loaders:load")
    assert fast.is_foreign
    assert find_function(str(fast.function), "--strategies")(None) == [[1, 2], [3]]


def test_a_strategy_keeps_its_properties_and_gets_the_registered_name() -> None:
    assert strategies.find("quick-raw") == Strategy("quick-raw", reads="source", ahead="thread")


def test_extras_of_an_entry_point_are_no_part_of_the_function() -> None:
    assert strategies.find("extra").function == "fast_loaders:load"


def test_it_is_imported_once() -> None:
    first = strategies.find("fast")
    del sys.modules["fast_loaders"]
    assert strategies.find("fast") is first
    assert "fast_loaders" not in sys.modules


def test_a_comparison_calls_it_by_the_registered_name() -> None:
    candidate = Candidate.parse("fast")
    assert (candidate.strategy, candidate.is_foreign) == ("fast", True)
    assert Candidate.parse("mine=fast").label == "mine"


@pytest.mark.slow
def test_processes_that_measure_find_it_where_this_process_does(tmp_path: Path) -> None:
    report = etl.compare(
        write_table(tmp_path),
        ["raw", "fast-raw"],
        table_options={"label": "kind"},
        compute="simulated:1ms",
        rounds=1,
        budget="20s",
    )
    assert [(each.name, len(each.rounds)) for each in report.strategies] == [("raw", 1), ("fast-raw", 1)], report.notes


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "no strategy is called 'absent'; there are raw, .*fast.*, and package.module:function for a loader"),
        ("number", "strategy 'number' is registered as a int; it must be an etl.strategies.Strategy, or a function"),
        ("gone", "strategy 'gone', which is fast_loads:load, cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_is_said(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strategies.find(name)
