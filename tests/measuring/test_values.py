"""Dataclasses as JSON values and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from etl.measuring.instruments import current_instruments
from etl.measuring.values import JsonValues


@dataclass(frozen=True)
class Inner(JsonValues):
    name: str
    seconds: float | None = None


@dataclass(frozen=True)
class Outer(JsonValues):
    inner: Inner
    several: list[Inner]
    spans: list[tuple[float, float]]
    order: tuple[int, ...]
    named: Mapping[str, Inner]
    seldom: Inner | None = None
    free: dict[str, float] = field(default_factory=dict)


def test_a_dataclass_comes_back_from_json_text() -> None:
    outer = Outer(
        Inner("a", 1.5), [Inner("b")], [(0.0, 1.0), (2.0, 3.0)], (3, 1, 2), {"c": Inner("c")}, Inner("d"), {"e": 1.0}
    )
    assert Outer.from_json(json.loads(json.dumps(outer.to_json()))) == outer


def test_a_field_that_is_missing_or_unknown_is_an_error() -> None:
    with pytest.raises(TypeError, match="name"):
        Inner.from_json({"seconds": 1.0})
    with pytest.raises(TypeError, match="colour"):
        Inner.from_json({"name": "a", "colour": "red"})


def test_the_instruments_are_those_of_the_folder_that_was_imported() -> None:
    used = current_instruments()
    assert (used.path, len(used.digest)) == (str(__import__("etl.measuring").measuring.__path__[0]), 32)
