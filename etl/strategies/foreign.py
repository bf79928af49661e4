"""Loaders of the user: how a function, a generator function or a class becomes an iterable of epochs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from etl.functions import name_of_function
from etl.strategies.task import Task


def open_loader(function: Callable[..., Any], task: Task) -> Iterable[Any]:
    """Return the loader that `function` makes for `task`: an iterable of batches, one epoch an iteration.

    A generator function is called again for every epoch.

    Parameters
    ----------
    function : callable
        A function, a generator function or a class.
    task : Task
        What its parameters can ask for.

    Raises
    ------
    ValueError
        If it asks for something that no task has, or does not return an iterable.
    """
    if inspect.isgeneratorfunction(function):
        return _Generator(function, task)
    loader = task.call(function)
    if inspect.isclass(loader) or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise ValueError(f"{name_of_function(function)} returned a {type(loader).__name__}, not an iterable of batches")
    iterable: Iterable[Any] = loader
    return iterable


def close_loader(loader: object) -> None:
    """Close a loader, or an epoch of one, if it has `close`."""
    close = getattr(loader, "close", None)
    if callable(close):
        close()


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
