"""Strategies that other packages register as entry points."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

from etl import entry_points
from etl.strategies.strategy import Strategy


def registered() -> dict[str, EntryPoint]:
    """Return the entry points of the group "etl.strategies" by name. Nothing is imported."""
    return entry_points.registered(entry_points.STRATEGIES)


def load(name: str) -> Strategy | Callable[..., Any]:
    """Return what is registered as `name`: a `Strategy`, or a function that a `Task` calls.

    Raises
    ------
    ValueError
        If nothing is registered as `name`, it cannot be imported, or it is neither of the two.
    """
    found: Any = entry_points.load(entry_points.STRATEGIES, name)
    if not (isinstance(found, Strategy) or callable(found)):
        raise ValueError(
            f"strategy {name!r} is registered as a {type(found).__name__}; it must be an etl.strategies.Strategy, or a "
            "function that returns an iterable of batches"
        )
    strategy: Strategy | Callable[..., Any] = found
    return strategy
