"""Settings are declared by a function, checked, and passed to it by name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from etl.strategies import Strategy, canonical, declared_settings, find, open_loader
from etl.strategies.settings import present_settings
from etl.strategies.task import Task

TASK = Task(batch_size=2, dtype="float32", seed=7, epoch=4, records=3, cpus=2, workers=2, folder="files")


def chosen(**settings: Any) -> Task:
    return dataclasses.replace(TASK, settings=settings)


def declaring(settings: Any, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return `function`, or one that returns its arguments, with the attribute `settings`."""

    def load(batch_size: int, workers: int, depth: int = 3, order: str | None = None) -> list[Any]:
        return [batch_size, workers, depth, order]

    made: Any = function or load
    made.settings = settings
    return made  # type: ignore[no-any-return]


def test_a_function_without_settings_declares_none() -> None:
    assert declared_settings(lambda task: [[1]]) == {}
    assert declared_settings(print) == {}


def test_sequences_of_any_kind_are_values() -> None:
    values = {"depth": range(1, 4), "order": ["in", None, True, 0.5], "workers": (0, 2), "compute_threads": (1, 2)}
    assert declared_settings(declaring(values)) == {
        "depth": (1, 2, 3),
        "order": ("in", None, True, 0.5),
        "workers": (0, 2),
        "compute_threads": (1, 2),
    }


def test_generator_functions_and_classes_declare_settings_too() -> None:
    def load(batch_size: int, depth: int = 3) -> Iterator[int]:
        yield depth

    class Loader:
        settings: ClassVar = {"depth": (1, 2)}

        def __init__(self, depth: int = 1) -> None:
            self.depth = depth

        def __iter__(self) -> Iterator[int]:
            return iter([self.depth])

    assert declared_settings(declaring({"depth": (1,)}, load)) == {"depth": (1,)}
    assert declared_settings(Loader) == {"depth": (1, 2)}
    assert list(open_loader(Loader, chosen(depth=2))) == [2]


def test_a_method_or_property_of_a_class_is_no_declaration() -> None:
    class WithProperty:
        @property
        def settings(self) -> int:
            return 3

    class WithMethod:
        def settings(self) -> int:
            return 3

    assert declared_settings(WithProperty) == declared_settings(WithMethod) == {}


def test_a_function_of_the_whole_task_may_declare_any_name() -> None:
    function = declaring({"anything": (1, 2)}, lambda task: [task.settings.get("anything", 1)])
    assert declared_settings(function) == {"anything": (1, 2)}
    assert list(open_loader(function, TASK)) == [1]
    assert list(open_loader(function, chosen(anything=2))) == [2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([("depth", (1, 2))], r"load: settings are a list; give a mapping such as"),
        ({3: (1, 2)}, r"load: the name of the setting 3 is a int"),
        ({"depth": ()}, r"load: the setting 'depth' needs a sequence of values"),
        ({"depth": 4}, r"load: the setting 'depth' needs a sequence of values"),
        ({"order": "in"}, r"load: the setting 'order' needs a sequence of values"),
        ({"depth": {1, 2}}, r"load: the setting 'depth' needs a sequence of values"),
        ({"depth": (1, 2, 1)}, r"load: the setting 'depth' has a value twice: \(1, 2, 1\)"),
        ({"depth": (1, [2])}, r"load: the setting 'depth' has the value \[2\]; give text"),
        ({"depth": (1.0, math.inf)}, r"load: the setting 'depth' has the value inf; give text, finite"),
        ({"workers": (1, "2")}, r"load: the setting 'workers' has the value '2'; give numbers of CPUs"),
        ({"compute_threads": (0, 1)}, r"load: the setting 'compute_threads' has the value 0; give numbers of CPUs"),
        ({"dept": (1, 2)}, r"load declares the setting 'dept', but has no parameter of that name"),
        ({"batch_size": (2, 4)}, r"load declares the setting 'batch_size', which is the same for all strategies"),
    ],
)
def test_errors_name_the_function_and_the_setting(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declared_settings(declaring(settings))


@pytest.mark.parametrize("load", [lambda path, depth: [depth], lambda depth: [depth]])
def test_a_declared_parameter_needs_a_default(load: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"<lambda> declares the setting 'depth': give its parameter a default"):
        declared_settings(declaring({"depth": (1, 2)}, load))


def test_present_values_are_defaults_unless_they_are_chosen() -> None:
    function = declaring({"depth": (1, 2), "order": ("in", None), "workers": (1, 2), "compute_threads": (1, 2)})
    assert present_settings(function, TASK) == {"depth": 3, "order": None, "workers": 2}
    assert present_settings(function, chosen(depth=1, workers=1)) == {"depth": 1, "order": None, "workers": 1}


def test_a_function_gets_chosen_values_by_name_and_keeps_its_defaults() -> None:
    function = declaring({})
    assert list(open_loader(function, TASK)) == [2, 2, 3, None]
    assert list(open_loader(function, chosen(depth=5))) == [2, 2, 5, None]
    assert list(open_loader(function, chosen(workers=1, order="in"))) == [2, 1, 3, "in"]
    assert list(open_loader(lambda task: [task.workers], chosen(workers=1))) == [1]
    assert list(open_loader(lambda task, depth=1: [task.settings, depth], chosen(depth=4))) == [{"depth": 4}, 4]
    assert list(open_loader(lambda batch_size, settings: [settings], chosen(workers=1))) == [{"workers": 1}]


def test_positional_parameters_before_a_chosen_one_keep_their_defaults() -> None:
    def load(batch_size: int, first: int = 1, depth: int = 2, /) -> list[int]:
        return [batch_size, first, depth]

    assert list(open_loader(load, chosen(depth=5))) == [2, 1, 5]


def test_a_setting_that_reaches_nothing_is_an_error_that_names_it() -> None:
    def generate(batch_size: int) -> Iterator[int]:
        yield 1

    with pytest.raises(ValueError, match=r"'dept' reaches nothing: .*load has no parameter of that name, and returned"):
        open_loader(declaring({}), chosen(depth=1, dept=2))
    with pytest.raises(ValueError, match=r"'num_workers' reaches nothing: .*generate has no .*, and is a generator"):
        open_loader(generate, chosen(num_workers=1))
    open_loader(generate, chosen(workers=1, compute_threads=1))  # the comparison itself applies them


def test_what_is_the_same_for_all_strategies_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match="the setting 'batch_size' cannot be chosen: it is the same for all"):
        chosen(batch_size=4)


def test_preparation_may_ask_for_other_settings_than_loading() -> None:
    assert chosen(depth=4).call(lambda batch_size, folder: (batch_size, folder)) == (2, "files")


def test_a_strategy_has_settings_and_can_be_hashed() -> None:
    made = Strategy("mine", reads="source", function="loaders:load", settings={"depth": [1, 2]})
    assert made.settings == {"depth": (1, 2)}
    assert hash(made) == hash(dataclasses.replace(made, settings={}))
    assert made != dataclasses.replace(made, settings={})
    assert find("raw") in {find("raw")}
    with pytest.raises(ValueError, match="strategy 'mine': the setting 'depth' needs a sequence of values"):
        Strategy("mine", reads="source", settings={"depth": ()})


ALL = {
    "prefetch_factor": 4,
    "persistent_workers": True,
    "pin_memory": False,
    "in_order": False,
    "sharing_strategy": "file_system",
    "depth": 3,
}


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, {}),
        ({**ALL, "num_workers": 0}, {"num_workers": 0, "pin_memory": False, "depth": 3}),
        ({**ALL, "num_workers": 1}, {each: ALL[each] for each in ALL if each != "in_order"} | {"num_workers": 1}),
        ({**ALL, "num_workers": 2}, {**ALL, "num_workers": 2}),
        (ALL, ALL),
        ({"num_workers": 2, "prefetch_factor": None}, {"num_workers": 2, "prefetch_factor": 2}),
        ({"workers": 0, "prefetch_factor": 4}, {"workers": 0, "prefetch_factor": 4}),
    ],
)
def test_values_without_effect_are_dropped(settings: dict[str, Any], kept: dict[str, Any]) -> None:
    before = dict(settings)
    assert canonical(settings) == kept
    assert settings == before
    assert canonical(kept) == kept
