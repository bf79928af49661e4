"""Threads and ends that an interrupt cannot cut in two.

A `KeyboardInterrupt` can be raised between any two instructions of the main thread: in `Thread.start`, which then has
started the thread and says that it has not; in `Condition.wait`, while its lock is released; in a finalizer, where
Python only prints it. It is never raised in another thread, nor inside a function that is written in C. So the main
thread registers an end before it starts anything (`end_with`), lets other threads do what must be whole (`start`,
`shielded`), and waits in `SimpleQueue.get`. An end may be called again after an interrupt, from the top.
"""

from __future__ import annotations

import _thread
import atexit
import multiprocessing.util  # noqa: F401 - what it does at the interpreter's exit comes after `_reach_all`
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Protocol, TypeVar

# Seconds that an end waits for a thread that is inside a user's code.
PATIENCE_SECONDS = 3.0

T = TypeVar("T")

# The ends that have not been reached: the reference whose callback reaches one, and the function that does.
_ends: dict[object, tuple[weakref.ref[Any], Callable[[], None]]] = {}
# When the interpreter exits, the time until which all ends may wait.
_exit_deadline: float | None = None


class AnyWorker(Protocol):
    """A thread, or a call that another thread makes."""

    @property
    def ident(self) -> int | None: ...

    def start(self) -> None: ...

    def wait(self, seconds: float | None = None) -> bool: ...


class Returned:
    """A flag that a function has returned in another thread. It is set in a fork of this process, which has none."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._is_set = False

    def set(self) -> None:
        """Set the flag, and wake all that wait."""
        self._is_set = True
        self._tokens.put(None)

    def is_set(self) -> bool:
        """Return True if the function has returned, or this process is a fork."""
        return self._is_set or os.getpid() != self._owner

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the flag is set, at most `seconds`; return whether it is."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self.is_set():
            try:
                self._tokens.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except Empty:
                return self.is_set()
        if self._is_set:
            self._tokens.put(None)  # for others that wait
        return True


class Worker(threading.Thread):
    """A daemon thread. After an interrupted `join`, Python takes a thread for ended; `wait` does not."""

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...] = (), *, name: str) -> None:
        super().__init__(target=target, args=args, name=name, daemon=True)
        # Weak references to all threads, for forks, which know this one while it runs. With a thread that is dropped,
        # they run a finalizer.
        threading._dangling.discard(self)  # type: ignore[attr-defined]
        self._returned = Returned()

    def run(self) -> None:
        """Call the function."""
        try:
            super().run()
        finally:
            self._returned.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the thread has ended, at most `seconds`; return whether it has, or was never started."""
        if self.ident in (None, threading.get_ident()):
            return True
        if not self._returned.wait(seconds):
            return False
        if self.is_alive():  # not in a fork
            self.join(PATIENCE_SECONDS)
        return True


class Wakeups:
    """Wakes the threads that wait for a change. Unlike a `threading.Condition`, it survives an interrupt of a wait.

    Increase `waiting` while the state is locked, and then call `wait` without the lock. It may return although nothing
    has changed.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.tokens: SimpleQueue[None] = SimpleQueue()

    def wait(self, lock: AbstractContextManager[object], seconds: float | None) -> None:
        """Wait until woken, at most `seconds`; `lock` locks the state."""
        try:
            self.tokens.get(timeout=seconds)
        except Empty:
            with lock:
                if self.waiting > 0:
                    self.waiting -= 1
                else:  # this thread was to be woken meanwhile
                    self.tokens.get_nowait()

    def notify_all(self) -> None:
        """Wake the threads that wait. The state must be locked."""
        while self.waiting > 0:
            self.tokens.put(None)
            self.waiting -= 1  # last: after an interrupt, a token too many


def wait_for(workers: Sequence[AnyWorker], seconds: float) -> bool:
    """Wait until `workers` have ended, at most `seconds` in all, and less at the interpreter's exit."""
    deadline = time.monotonic() + seconds
    if _exit_deadline is not None:
        deadline = min(deadline, _exit_deadline)
    return all(worker.wait(max(0.0, deadline - time.monotonic())) for worker in workers)


def wait_while_busy(workers: Sequence[Worker], seconds: Callable[[], float], done: Callable[[], int]) -> bool:
    """Wait until `workers` have ended, and give up when they are too slow; return whether they have.

    They are too slow if `done()`, the number of things that they got done, stays the same for `seconds()`.
    """
    while True:
        before, deadline = done(), time.monotonic() + seconds()
        if all(worker.wait(max(0.0, deadline - time.monotonic())) for worker in workers):
            return True
        if done() == before:
            return False


def start(threads: Sequence[AnyWorker]) -> None:
    """Start `threads`, from another one; raise the error of the first that cannot be started."""

    def start_all() -> None:
        for each in threads:
            each.start()

    shielded(start_all)


def shielded(function: Callable[[], T]) -> T:
    """Return `function()`, called in another thread if this is the main one.

    An interrupt is raised at once, and `function` goes on to its end.
    """
    if threading.get_ident() != threading.main_thread().ident or _exit_deadline is not None:
        return function()
    outcome: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            outcome.put((function(), None))
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits
            outcome.put((None, error))

    # Not a `Thread`, which would itself have to be started in another thread.
    _thread.start_new_thread(run, ())
    result, error = outcome.get()
    if error is None:
        returned: T = result
        return returned
    try:
        raise error
    finally:  # its traceback holds this frame
        del error


def end_with(owner: object, end: Callable[[], None]) -> Callable[[], None]:
    """Call `end` when `owner` is gone, and at the latest when the interpreter exits.

    Return a function that calls it now; it is not called again unless an interrupt or another error came between.
    """
    key = object()

    def reach() -> None:
        end()
        _ends.pop(key, None)

    _ends[key] = weakref.ref(owner, finalizer(reach)), reach
    return reach


def finalizer(function: Callable[[], None]) -> Callable[[Any], object]:
    """Return a callback for `weakref.ref` that calls `function`.

    An interrupt meanwhile is raised when the callback has returned, and `function` is called again. The callback is a
    method in C that goes on inside the `try` of a generator, so that no instruction is outside of it.
    """
    callback = _finalizing(function)
    next(callback)
    return callback.send


def _finalizing(function: Callable[[], None]) -> Generator[None, Any, None]:
    try:
        yield
        function()
    except KeyboardInterrupt:
        _thread.start_new_thread(_finish, (function, sys._getframe()))
    yield


def _finish(function: Callable[[], None], frame: FrameType) -> None:
    """Call `function`, and interrupt the main thread once it has left `frame`."""
    function()
    main: Any = threading.main_thread().ident
    while _is_inside(sys._current_frames().get(main), frame):
        time.sleep(0.001)
    _thread.interrupt_main()


def _is_inside(at: FrameType | None, frame: FrameType) -> bool:
    while at is not None and at is not frame:
        at = at.f_back
    return at is not None


def _reach_all() -> None:
    global _exit_deadline
    _exit_deadline = time.monotonic() + PATIENCE_SECONDS
    with ExitStack() as stack:  # all of them, also if one raises
        for _, reach in list(_ends.values()):
            stack.callback(reach)


atexit.register(_reach_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ends.clear)  # what has to end belongs to the parent
