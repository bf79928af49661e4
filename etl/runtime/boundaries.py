"""Between two batches: where work is done that would disturb either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_listeners: list[Callable[[], None]] = []


def batch_boundary() -> None:
    """Say that the caller is done with one batch and has not asked for the next.

    The iterators of etl and `etl.fit` do so; a loop of your own over other iterators may call it.
    """
    for listener in tuple(_listeners):
        listener()


@contextmanager
def at_batch_boundaries(listener: Callable[[], None]) -> Iterator[None]:
    """Call `listener` at every batch boundary of this process, in the thread that is at it."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
