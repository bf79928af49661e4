"""The strategies by name: the built-in ones, and those that were registered."""

from __future__ import annotations

from etl.strategies.strategy import Strategy

_BUILT_IN = (
    Strategy("raw", reads="source", is_default=True),
    Strategy("async-raw", reads="source", ahead="thread", is_default=True),
    Strategy("process-raw", reads="source", ahead="process"),
    Strategy("presaved", reads="store", is_default=True),
    Strategy("async-presaved", reads="store", ahead="thread", is_default=True),
)
_strategies = {each.name: each for each in _BUILT_IN}


def find(name: str) -> Strategy:
    """Return the strategy called `name`.

    Raises
    ------
    ValueError
        If there is none. The message lists all names.
    """
    if name not in _strategies:
        raise ValueError(f"no strategy is called {name!r}; there are {', '.join(_strategies)}")
    return _strategies[name]


def names() -> tuple[str, ...]:
    """Return the names of all strategies, in the order in which they were registered."""
    return tuple(_strategies)


def default_names() -> tuple[str, ...]:
    """Return the names of the strategies that are compared by default."""
    return tuple(each.name for each in _strategies.values() if each.is_default)


def register(strategy: Strategy) -> None:
    """Register `strategy` under its name, in this process only.

    Raises
    ------
    ValueError
        If a different strategy has that name.
    """
    if _strategies.setdefault(strategy.name, strategy) != strategy:
        raise ValueError(f"another strategy is already called {strategy.name!r}; register this one under another name")
