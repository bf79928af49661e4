"""Batch boundaries: the time between two batches, for work that would disturb loading or training."""

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
    """Announce that the caller is done with one batch and has not asked for the next.

    The iterators of etl and `etl.fit` call this. Call it yourself in a loop over any other iterator.
    """
    if _thread.is_loop_announcing:
        return
    for listener in tuple(_listeners):
        listener()


@contextmanager
def announced_by_loop() -> Iterator[None]:
    """Silence the batch boundaries of iterators in this thread, because the loop around them announces its own."""
    before = _thread.is_loop_announcing
    _thread.is_loop_announcing = True
    try:
        yield
    finally:
        _thread.is_loop_announcing = before


@contextmanager
def at_batch_boundaries(listener: Callable[[], None]) -> Iterator[None]:
    """Call `listener` at every batch boundary of this process, in the thread that announces it."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
