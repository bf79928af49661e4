"""A thread that outlives epochs: what records open in it can be used as long as the iterator."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from presave import interrupts

IDLE = "etl-idle"


class LastingThread:
    """A daemon thread that makes one call after another, until `close` or until nothing refers to this object.

    A copy has a thread of its own.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread: interrupts.Worker | None = None
        self._last: Call | None = None
        self._is_closed = False
        self._end = interrupts.end_with(self, partial(self._calls.put, None))

    def __reduce__(self) -> tuple[type[LastingThread], tuple[()]]:
        return LastingThread, ()

    def is_free(self) -> bool:
        """Return True if it can make another call; wait `interrupts.PATIENCE_SECONDS` at most for the last one."""
        if self._is_closed or self._owner != os.getpid():
            return False
        return self._last is None or self._last.wait(interrupts.PATIENCE_SECONDS)

    def call(self, target: Callable[..., object], args: tuple[Any, ...] = (), *, name: str) -> Call:
        """Return a call to start; the arguments are those of `interrupts.Worker`."""
        return Call(self, target, args, name)

    def close(self) -> None:
        """End the thread after its last call."""
        self._is_closed = True
        self._end()

    def begin(self, call: Call) -> int | None:
        """Let the thread make `call` next, and return the identifier of the thread."""
        if self._thread is None:
            thread = interrupts.Worker(_work, (self._calls,), name=IDLE)
            thread.start()
            self._thread = thread
        self._last = call
        self._calls.put(call)
        return self._thread.ident


class Call:
    """A call of a `LastingThread`, to be made, started and waited for as an `interrupts.Worker` is.

    The thread has the name during the call.
    """

    def __init__(self, thread: LastingThread, target: Callable[..., object], args: tuple[Any, ...], name: str) -> None:
        # Both are dropped when they are not needed any more: they refer to batches, and to the thread.
        self._thread: LastingThread | None = thread
        self._call: tuple[Callable[..., object], tuple[Any, ...]] | None = (target, args)
        self._name = name
        self._returned = interrupts.Returned()
        self._ident: int | None = None

    @property
    def ident(self) -> int | None:
        """The identifier of the thread, while it makes the call; None before and after."""
        return None if self._returned.is_set() else self._ident

    def start(self) -> None:
        """Make the call when the thread has made those before it."""
        assert self._thread is not None  # noqa: S101 - a call is started once
        self._ident, self._thread = self._thread.begin(self), None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the call has ended, at most `seconds`; return whether it has, or was never started."""
        return self._ident is None or self._returned.wait(seconds)

    def run(self) -> None:
        """Make the call, in the thread."""
        thread, call, self._call = threading.current_thread(), self._call, None
        assert call is not None  # noqa: S101 - a call is made once
        thread.name = self._name
        try:
            call[0](*call[1])
        finally:
            del call
            thread.name = IDLE
            self._returned.set()


def _work(calls: SimpleQueue[Call | None]) -> None:
    while (call := calls.get()) is not None:
        try:
            call.run()
        except BaseException:  # noqa: BLE001 - shown as that of a thread, but the next call is made
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        del call  # or it would live until the next one
