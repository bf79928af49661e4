"""A strategy: a way to get from data to batches, how it wraps an iterator, and the strategies known by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from etl import entry_points
from etl.functions import is_function_name
from etl.strategies.settings import Value, check_settings, declared_settings

if TYPE_CHECKING:
    from etl.iterators import BatchIterator


@dataclass(frozen=True)
class Strategy:
    """A way to get from data to batches. Its properties are attributes and never parsed from its name.

    Parameters
    ----------
    name : str
        Name on the command line and in reports.
    reads : {"source", "store"}
        "source": encoded records, which pass all stages of the pipeline in every epoch. "store": records as they are
        after one of the stages, from a store that must be written first.
    ahead : {"thread", "process"}, optional
        Kind of the workers that load the next batches during compute; None if the training loop itself loads.
    is_default : bool
        True if `etl compare` includes it by default.
    function : str, optional
        The user's function that loads, as `etl.functions.find_function` takes it. None for the strategies of this
        package.
    settings : dict of str to sequence of str, int, float, bool or None
        Values worth trying of each of its settings. Those that the function itself declares count, too.

    Raises
    ------
    ValueError
        If a setting has no values, or values of other types.
    """

    name: str
    reads: Literal["source", "store"]
    ahead: Literal["thread", "process"] | None = None
    is_default: bool = False
    function: str | None = None
    settings: Mapping[str, Sequence[Value]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", check_settings(self.settings, f"strategy {self.name!r}"))

    @property
    def reads_store(self) -> bool:
        """True if it reads a store, which must be written first."""
        return self.reads == "store"

    @property
    def loads_ahead(self) -> bool:
        """True if it loads the next batches during compute."""
        return self.ahead is not None

    @property
    def is_foreign(self) -> bool:
        """True if a user's function loads, in ways that are unknown here."""
        return self.function is not None

    @property
    def uses_processes(self) -> bool:
        """True if worker processes load, rather than threads."""
        return self.ahead == "process"

    def wrap(self, iterator: BatchIterator, prefetch_size: int, workers: int | None) -> BatchIterator:
        """Return an iterator over the batches of `iterator` that loads them as this strategy does.

        Parameters
        ----------
        iterator : BatchIterator
            Iterator over the source or store that the strategy reads, which loads in the calling thread. It is returned
            unchanged if the strategy does not load ahead.
        prefetch_size : int
            Batches that are loaded ahead.
        workers : int or None
            Threads or processes that load ahead; 0 counts as 1. None for the default of `AsyncIterator`.
        """
        from etl.iterators import AsyncIterator  # needs packages that are missing where only other strategies run

        if self.ahead is None:
            return iterator
        count = None if workers is None else max(1, workers)
        if self.ahead == "process":
            return AsyncIterator(iterator, prefetch_size, workers="process", processes=count)
        return AsyncIterator(iterator, prefetch_size, threads=count)


_BUILT_IN = (
    Strategy("raw", reads="source", is_default=True),
    Strategy("async-raw", reads="source", ahead="thread", is_default=True),
    Strategy("process-raw", reads="source", ahead="process"),
    Strategy("presaved", reads="store", is_default=True),
    Strategy("async-presaved", reads="store", ahead="thread", is_default=True),
)
_strategies = {each.name: each for each in _BUILT_IN}


def find(name: str) -> Strategy:
    """Return the strategy called `name`, or that of the function "package.module:function".

    Raises
    ------
    ValueError
        If there is none. The message lists all names.
    """
    if name in _strategies:
        return _strategies[name]
    if is_function_name(name):
        return Strategy(name, reads="source", function=name)
    if name in entry_points.registered(entry_points.STRATEGIES):
        return _strategies.setdefault(name, _load(name))
    raise ValueError(
        f"no strategy is called {name!r}; there are {', '.join(names())}, and package.module:function for a loader of "
        "your own"
    )


def names() -> tuple[str, ...]:
    """Return the names of all strategies: those of this package first, then those of other packages."""
    return tuple(dict.fromkeys([*_strategies, *entry_points.registered(entry_points.STRATEGIES)]))


def _load(name: str) -> Strategy:
    """Return the strategy that another package has registered as `name`, with that name.

    Raises `ValueError` if it cannot be imported, or is neither a `Strategy` nor a function.
    """
    found = entry_points.load(entry_points.STRATEGIES, name)
    if isinstance(found, Strategy):
        return replace(found, name=name)
    if not callable(found):
        raise ValueError(
            f"strategy {name!r} is registered as a {type(found).__name__}; it must be an etl.strategies.Strategy, or a "
            "function that returns an iterable of batches"
        )
    function = entry_points.registered(entry_points.STRATEGIES)[name].value.partition("[")[0].strip()
    return Strategy(name, reads="source", function=function, settings=declared_settings(found))


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
