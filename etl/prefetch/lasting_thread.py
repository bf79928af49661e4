"""A thread that outlives epochs: what records open in it can be used as long as the iterator."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

LOADING, IDLE = "etl-prefetch", "etl-idle"
T = TypeVar("T")


class LastingThread:
    """A daemon thread that makes one call after another, until `close` or until nothing refers to this object.

    A copy has a thread of its own.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Call | None = None
        self._is_closed = False

    def __reduce__(self) -> tuple[type[LastingThread], tuple[()]]:
        return LastingThread, ()

    def is_free(self, patience: float | None) -> bool:
        """Return True if it can make another call, after `patience` seconds at most for the last one to end."""
        if self._is_closed or self._owner != os.getpid():
            return False
        return self._last is None or self._last.join(patience)

    def call(self, target: Callable[..., object], args: tuple[Any, ...] = (), **_: Any) -> Call:
        """Return a call to start; takes the arguments of `threading.Thread`, of which it needs these two."""
        return Call(self, target, args)

    def result(self, function: Callable[[], T]) -> T:
        """Call `function` in the thread and return its result, or raise its exception."""
        future: Future[T] = Future()

        def call() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised by `result`
                future.set_exception(error)

        self.call(call).start()
        return future.result()

    def close(self) -> None:
        """End the thread after its last call."""
        self._is_closed = True
        self._calls.put(None)

    def begin(self, call: Call) -> int | None:
        """Let the thread make `call` next, and return the identifier of the thread."""
        if self._thread is None:
            thread = threading.Thread(target=_work, args=(self._calls,), name=IDLE, daemon=True)
            thread.start()
            self._thread = thread
            weakref.finalize(self, self._calls.put, None)
        self._last = call
        self._calls.put(call)
        return self._thread.ident


class Call:
    """A call of a `LastingThread`, with those members of `threading.Thread` that a prefetcher needs.

    Parameters
    ----------
    thread : LastingThread
        Makes the call.
    target, args
        As for `threading.Thread`.
    """

    def __init__(self, thread: LastingThread, target: Callable[..., object], args: tuple[Any, ...]) -> None:
        # Both are dropped when they are not needed any more: they refer to batches, and to the thread.
        self._thread: LastingThread | None = thread
        self._call: tuple[Callable[..., object], tuple[Any, ...]] | None = (target, args)
        self._ended = threading.Event()
        self.ident: int | None = None

    def start(self) -> None:
        """Make the call when the thread has made those before it."""
        assert self._thread is not None  # noqa: S101 - a call is started once
        self.ident, self._thread = self._thread.begin(self), None

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the call has ended; return False if it has not after `timeout` seconds."""
        return self._ended.wait(timeout)

    def is_alive(self) -> bool:
        """Return True until the call has ended."""
        return not self._ended.is_set()

    def run(self) -> None:
        """Make the call, in the thread. An exception ends it as it would end a thread."""
        thread, call, self._call = threading.current_thread(), self._call, None
        assert call is not None  # noqa: S101 - a call is made once
        thread.name = LOADING
        try:
            call[0](*call[1])
        finally:
            del call
            thread.name = IDLE
            self._ended.set()


def _work(calls: SimpleQueue[Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.run()
        del call  # or it would live until the next one
