"""Settings of a strategy that may be varied: what a function declares, and which values have an effect."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etl.functions import name_of_function, parameters_of, takes_whole
from etl.strategies.task import NAMES, Task

Value = str | int | float | bool | None

# The comparison itself applies these, so a function need not ask for them. The least value of each.
APPLIED = {"workers": 0, "compute_threads": 1}
# torch's DataLoader has this factor if none is given.
PREFETCH_FACTOR = 2


def declared_settings(function: Callable[..., Any]) -> dict[str, tuple[Value, ...]]:
    """Return the values worth trying of each setting that `function` declares in its attribute `settings`.

    An attribute of a class that is a method or a property declares nothing.

    Raises
    ------
    ValueError
        If the attribute is not a mapping of names to sequences of values, or names a setting that cannot be passed to
        `function`. The message names both.
    """
    declared = getattr(function, "settings", None)
    if declared is None or hasattr(type(declared), "__get__"):
        return {}
    owner = name_of_function(function)
    checked = check_settings(declared, owner)
    parameters = {each.name: each for each in parameters_of(function)}
    reads_task = takes_whole(function, {*NAMES, *checked})
    for name in checked.keys() - APPLIED.keys():
        if name in NAMES:
            raise ValueError(f"{owner} declares the setting {name!r}, which is the same for all strategies")
        if name not in parameters and not reads_task:
            raise ValueError(f"{owner} declares the setting {name!r}, but has no parameter of that name")
        if name in parameters and parameters[name].default is parameters[name].empty:
            raise ValueError(f"{owner} declares the setting {name!r}: give its parameter a default")
    return checked


def present_settings(function: Callable[..., Any], task: Task) -> dict[str, Value]:
    """Return the values that settings declared by `function` have with `task`: chosen ones, otherwise defaults.

    Those without a default are left out: `function` reads them from the whole task.
    """
    declared = declared_settings(function)
    defaults = {each.name: each.default for each in parameters_of(function) if each.default is not each.empty}
    present = {**defaults, "workers": task.workers, **task.settings}
    return {name: present[name] for name in declared if name in present and isinstance(present[name], Value)}


def check_settings(settings: Any, owner: str) -> dict[str, tuple[Value, ...]]:
    """Return `settings` with the values of each as a tuple.

    Raises `ValueError` that names `owner` if they are no mapping of names to sequences of different values.
    """
    if not isinstance(settings, Mapping):
        raise ValueError(
            f'{owner}: settings are a {type(settings).__name__}; give a mapping such as {{"workers": (1, 2, 4)}}'
        )
    checked: dict[str, tuple[Value, ...]] = {}
    for name, values in settings.items():
        if not isinstance(name, str):
            raise ValueError(f"{owner}: the name of the setting {name!r} is a {type(name).__name__}, not text")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ValueError(f"{owner}: the setting {name!r} needs a sequence of values, such as (1, 2, 4)")
        for value in values:
            if not isinstance(value, Value) or (isinstance(value, float) and not math.isfinite(value)):
                raise ValueError(
                    f"{owner}: the setting {name!r} has the value {value!r}; give text, finite numbers, True, False or "
                    "None"
                )
            if name in APPLIED and (type(value) is not int or value < APPLIED[name]):
                raise ValueError(f"{owner}: the setting {name!r} has the value {value!r}; give numbers of CPUs")
        if len(set(values)) < len(values):
            raise ValueError(f"{owner}: the setting {name!r} has a value twice: {values!r}")
        checked[name] = tuple(values)
    return checked


def canonical(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return `settings` without values that have no effect beside the others, for a torch DataLoader.

    Equal results mean equal configurations: without worker processes nothing is prefetched, kept or shared, and one
    worker keeps the order anyway. Other settings are returned as they are.
    """
    settings = dict(settings)
    workers = settings.get("num_workers")
    idle: tuple[str, ...] = ()
    if workers == 0:
        idle = ("prefetch_factor", "persistent_workers", "in_order", "sharing_strategy")
    elif workers == 1:
        idle = ("in_order",)
    if workers and settings.get("prefetch_factor", PREFETCH_FACTOR) is None:
        settings["prefetch_factor"] = PREFETCH_FACTOR
    return {name: value for name, value in settings.items() if name not in idle}
