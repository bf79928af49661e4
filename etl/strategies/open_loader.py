"""User loaders: how a function, a generator function or a class becomes an iterable of epochs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from etl.functions import name_of_function, parameters_of, takes_whole
from etl.strategies.settings import APPLIED, Value, declared_settings
from etl.strategies.task import NAMES, Task
from etl.strategies.torch_loader import TORCH_SETTINGS, apply_torch_settings, is_torch_loader


def open_loader(function: Callable[..., Any], task: Task) -> Iterable[Any]:
    """Return the loader that `function` makes for `task`: an iterable of batches, one epoch an iteration.

    A generator function is called again for every epoch. Chosen settings of a torch DataLoader that the function does
    not ask for are applied to the DataLoader that it returns.

    Parameters
    ----------
    function : callable
        A function, a generator function or a class.
    task : Task
        What its parameters can ask for.

    Raises
    ------
    ValueError
        If it asks for something that no task has, or does not return an iterable; if a chosen setting reaches nothing.
    """
    rest = _not_asked_for(function, task)
    if inspect.isgeneratorfunction(function):
        _refuse(rest, function, task, "is a generator function")
        return _Generator(function, task)
    loader = task.call(function)
    if inspect.isclass(loader) or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise ValueError(f"{name_of_function(function)} returned a {type(loader).__name__}, not an iterable of batches")
    if is_torch_loader(loader):
        loader = apply_torch_settings(loader, {name: rest.pop(name) for name in TORCH_SETTINGS if name in rest})
    _refuse(rest, function, task, f"returned a {type(loader).__name__}")
    iterable: Iterable[Any] = loader
    return iterable


def _not_asked_for(function: Callable[..., Any], task: Task) -> dict[str, Value]:
    """Return the chosen settings that `function` does not ask for by name."""
    asked = {*APPLIED, *(each.name for each in parameters_of(function))}
    if _reads_task(function, task):
        asked.update(declared_settings(function))
    return {name: value for name, value in task.settings.items() if name not in asked}


def _refuse(settings: Mapping[str, Value], function: Callable[..., Any], task: Task, reason: str) -> None:
    """Raise `ValueError` if there are any settings that reach nothing. A function of the whole task may read all."""
    if settings and not _reads_task(function, task):
        name = next(iter(settings))
        raise ValueError(
            f"the setting {name!r} reaches nothing: {name_of_function(function)} has no parameter of that name, and "
            f"{reason}"
        )


def _reads_task(function: Callable[..., Any], task: Task) -> bool:
    return takes_whole(function, {*NAMES, *task.settings})


def find_prepare(function: Callable[..., Any]) -> Callable[[Task], Any] | None:
    """Return a function that prepares the data of `function`; None if there is nothing to prepare.

    It is the attribute `prepare` of the function. A class has it as a method, and an instance is made first, unless the
    method is static or of the class.
    """
    prepare = getattr(function, "prepare", None)
    if prepare is None:
        return None
    if inspect.isclass(function) and inspect.isfunction(inspect.getattr_static(function, "prepare")):
        return lambda task: task.call(task.call(function).prepare)
    return lambda task: task.call(prepare)


class _Generator:
    """Epochs of a generator function."""

    def __init__(self, function: Callable[..., Any], task: Task) -> None:
        self._function = function
        self._task = task

    def __iter__(self) -> Iterator[Any]:
        task, self._task = self._task, self._task.at_epoch(self._task.epoch + 1)
        batches: Iterator[Any] = task.call(self._function)
        return batches
