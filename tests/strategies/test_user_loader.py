"""A user's loader is a function, a generator function or a class; each iteration is an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from etl.strategies.open_loader import find_prepare, open_loader
from etl.strategies.task import Task

TASK = Task(batch_size=2, dtype="float32", seed=7, epoch=4, records=3, cpus=2, workers=2, folder="files")


def test_a_function_is_called_once_and_its_iterable_gives_every_epoch() -> None:
    calls: list[int] = []

    def load(batch_size: int) -> list[list[int]]:
        calls.append(batch_size)
        return [[0, 1], [2]]

    loader = open_loader(load, TASK)
    assert [list(loader), list(loader)] == [[[0, 1], [2]]] * 2
    assert calls == [2]


def test_a_generator_function_is_called_when_an_epoch_begins_with_its_number_and_the_chosen_values() -> None:
    begun: list[tuple[int, int]] = []

    def load(epoch: int, depth: int = 3) -> Iterator[int]:
        begun.append((epoch, depth))
        yield 1

    loader = open_loader(load, replace(TASK, settings={"depth": 5}))
    assert begun == []
    assert [list(loader), list(loader)] == [[1], [1]]
    assert begun == [(4, 5), (5, 5)]


def test_a_partial_function_keeps_the_arguments_that_it_has_fixed() -> None:
    def load(batch_size: int, workers: int) -> list[int]:
        return [batch_size, workers]

    assert [list(open_loader(partial(load, workers=each), TASK)) for each in (0, 4)] == [[2, 0], [2, 4]]


def test_a_class_is_a_loader() -> None:
    class Loader:
        def __init__(self, batch_size: int, workers: int) -> None:
            self.given = batch_size, workers

        def __iter__(self) -> Iterator[int]:
            return iter(self.given)

    loader = open_loader(Loader, TASK)
    assert isinstance(loader, Loader)
    assert list(loader) == [2, 2]


def test_a_sequence_without_iter_is_a_loader() -> None:
    class Batches:
        def __getitem__(self, index: int) -> int:
            return [10, 20][index]

    assert list(open_loader(lambda task: Batches(), TASK)) == [10, 20]


@pytest.mark.parametrize(("returned", "kind"), [(None, "NoneType"), (3, "int"), (print, "builtin_function_or_method")])
def test_what_is_no_iterable_is_refused_with_the_name_of_the_function(returned: Any, kind: str) -> None:
    def dataloader(task: Task) -> Any:
        return returned

    with pytest.raises(ValueError, match=f"dataloader returned a {kind}, not an iterable of batches"):
        open_loader(dataloader, TASK)


def test_an_unknown_parameter_is_refused_when_a_function_is_opened_and_a_generator_begins() -> None:
    def load(path: str, shuffle: bool) -> list[int]:
        return []

    def generate(path: str, shuffle: bool) -> Iterator[int]:
        yield 1

    with pytest.raises(ValueError, match="'shuffle'"):
        open_loader(load, TASK)
    loader = open_loader(generate, TASK)
    with pytest.raises(ValueError, match="'shuffle'"):
        iter(loader)


def test_a_function_without_prepare_prepares_nothing() -> None:
    assert find_prepare(lambda task: [[1]]) is None


def test_the_attribute_prepare_of_a_function_is_called_with_what_it_asks_for() -> None:
    def load(folder: str) -> list[str]:
        return [folder]

    load.prepare = lambda folder, records: (folder, records)  # type: ignore[attr-defined]
    assert prepared(load) == ("files", 3)


class WithMethod:
    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def prepare(self, folder: str) -> tuple[str, int]:
        return folder, self.batch_size

    def __iter__(self) -> Iterator[int]:
        return iter([self.batch_size])


class WithStatic(WithMethod):
    def __init__(self, batch_size: int) -> None:
        raise AssertionError("made before there was anything to load")

    @staticmethod
    def prepare(folder: str, seed: int) -> tuple[str, int]:  # type: ignore[override]
        return folder, seed


class WithClassMethod(WithStatic):
    @classmethod
    def prepare(cls, folder: str, records: int) -> tuple[str, int]:  # type: ignore[override]
        return folder, records


@pytest.mark.parametrize(
    ("loader", "returned"),
    [
        (WithMethod, ("files", 2)),
        (WithStatic, ("files", 7)),
        (WithClassMethod, ("files", 3)),
        (WithMethod(5), ("files", 5)),
    ],
    ids=["method", "static method", "class method", "object"],
)
def test_a_method_prepare_gets_an_instance_and_others_none(
    loader: Callable[..., Any], returned: tuple[str, int]
) -> None:
    assert prepared(loader) == returned


def prepared(function: Callable[..., Any]) -> Any:
    """Return what preparing for `function` returns."""
    prepare = find_prepare(function)
    assert prepare is not None
    return prepare(TASK)
