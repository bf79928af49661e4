"""Between two batches: where work is done that would disturb either."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Thread(threading.local):
    """The state of one thread."""

    is_loop_announcing = False


_listeners: list[Callable[[], None]] = []
_thread = _Thread()


def batch_boundary() -> None:
    """Say that the caller is done with one batch and has not asked for the next.

    The iterators of etl and `etl.fit` do so; a loop of your own over other iterators may call it.
    """
    if _thread.is_loop_announcing:
        return
    for listener in tuple(_listeners):
        listener()


@contextmanager
def announced_by_loop() -> Iterator[None]:
    """Silence the batch boundaries of the iterators that this thread advances: the loop around them has its own."""
    before = _thread.is_loop_announcing
    _thread.is_loop_announcing = True
    try:
        yield
    finally:
        _thread.is_loop_announcing = before


@contextmanager
def at_batch_boundaries(listener: Callable[[], None]) -> Iterator[None]:
    """Call `listener` at every batch boundary of this process, in the thread that is at it."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
