"""A task gives a function what its parameters name, and opens nothing that is not asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, Signature
from typing import Any

import pytest

from etl.strategies.task import NAMES, Task


def task(**more: Any) -> Task:
    given: dict[str, Any] = {
        "batch_size": 32,
        "dtype": "float32",
        "seed": 7,
        "epoch": 0,
        "records": 500,
        "cpus": 4,
        "workers": 3,
        "folder": "files",
        **more,
    }
    return Task(**given)


def test_every_documented_attribute_can_be_asked_for_by_name() -> None:
    made = task(open_path=lambda: "photographs", open_source=lambda: "records", open_pipeline=lambda: "stages")
    listed = str(Task.__doc__).partition("Attributes")[2]
    for name in NAMES:
        assert f"\n    {name}" in listed or f", {name} : " in listed, name

        def load(**given: Any) -> dict[str, Any]:
            return given

        load.__signature__ = Signature([Parameter(name, Parameter.KEYWORD_ONLY)])  # type: ignore[attr-defined]
        assert made.call(load) == {name: getattr(made, name)}
    assert set(NAMES) == {*(each.name for each in fields(Task)), "path", "source", "pipeline"} - {
        "open_path",
        "open_source",
        "open_pipeline",
    }


def test_a_single_parameter_of_another_name_gets_the_whole_task() -> None:
    made = task()
    assert made.call(lambda t: t) is made
    assert made.call(lambda job, batch_size=64: (job, batch_size)) == (made, 64)


def test_the_source_is_opened_only_for_a_function_that_asks_for_it() -> None:
    opened: list[str] = []

    def open_source() -> list[int]:
        opened.append("source")
        return [1, 2]

    made = task(open_source=open_source)
    assert made.call(lambda batch_size, seed: (batch_size, seed)) == (32, 7)
    assert opened == []
    assert made.call(lambda source, seed: source) == [1, 2]
    assert opened == ["source"]


@pytest.mark.parametrize(
    ("load", "name"),
    [(lambda path, seed: None, "path"), (lambda source: None, "source"), (lambda task: task.pipeline, "pipeline")],
)
def test_what_is_not_there_is_an_error_when_it_is_asked_for(load: Callable[..., Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"this task has no {name} in this process"):
        task().call(load)


def test_a_later_epoch_is_the_same_task_otherwise() -> None:
    first = task(open_path=lambda: "photographs")
    later = first.at_epoch(3)
    assert (first.epoch, later.epoch) == (0, 3)
    assert later.at_epoch(0) == first
    assert later.path == "photographs"
