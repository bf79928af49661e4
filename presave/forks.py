"""Safe forks: `os.fork` waits until no background thread of this project holds a lock.

A forked child has a single thread, the one that forked, and a copy of every lock. If another thread held a lock at that
moment, the lock stays locked in the child forever: that of the import system, for example, of `tempfile` or of a
buffered file. Background threads therefore work inside `held_off()`. `os.fork` waits until every other thread has left
such a block or has called `let_through`, but no longer than the block's `patience`.

A block must not wait for the thread that forks, since that thread waits for the block.
"""

from __future__ import annotations

# The handlers of these modules take locks that a background thread may need to leave its block. So ours must run before
# theirs. Before a fork, the handler that was registered last runs first, so these modules are imported first.
import concurrent.futures.thread  # noqa: F401
import contextlib
import logging  # noqa: F401
import os
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

import h5py  # noqa: F401

# numpy imports these when they are first used. In a thread that starts to load, that may be while another one forks.
import numpy.ma
import numpy.random  # noqa: F401

# Long enough to import a large library, short enough if a record hangs or waits for the thread that forks.
PATIENCE_SECONDS = 5.0


@dataclass(eq=False)
class _Block:
    """A thread that is inside one or more nested `held_off()` blocks.

    Attributes
    ----------
    thread : str
        Name of the thread.
    patience : float
        How long a fork waits for it, in seconds.
    entered : set
        One object for each of the nested blocks.
    is_given_up : bool
        True if a fork ran out of patience with it. Later forks do not wait for it until the thread has moved on.
    """

    thread: str
    patience: float
    entered: set[object] = field(default_factory=set)
    is_given_up: bool = False


# Held during a fork. Re-entrant, because a signal handler may fork in a thread that holds it.
_lock = threading.RLock()
_changed = threading.Condition(_lock)
# Blocks by thread identifier.
_blocks: dict[int, _Block] = {}
_forks_waiting = 0
# True if a fork waits or has given up a block, so that `let_through` has something to do. Read without the lock, for
# every record.
is_pending = False
# Identifiers of the threads that are waiting to fork. They do not wait for each other.
_forking: set[int] = set()
# Blocks that the current fork has given up waiting for.
_given_up: list[_Block] = []


@contextlib.contextmanager
def held_off(patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Make forks by other threads wait for the end of this block, for at most `patience` seconds."""
    identifier, entry = threading.get_ident(), object()
    try:  # an interrupt may come before any of these lines, and again while the block is left
        with _lock:
            block = _blocks.get(identifier)
            if block is None:
                block = _blocks[identifier] = _Block(_thread_name(identifier), patience)
            block.entered.add(entry)
        yield
    finally:
        with _lock:
            block = _blocks.get(identifier)
            if block is not None:
                block.entered.discard(entry)
                if not block.entered:
                    _leave()


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """Let forks happen during this block, which must be inside `held_off()` and only wait."""
    with _lock:
        block = _leave()
    try:
        yield
    finally:
        with _lock:
            _return_to(block)


def wait_on(condition: threading.Condition) -> None:
    """Wait on `condition`, inside `held_off()`, and let forks happen meanwhile."""
    # The same as `allowed()`, inlined for speed: threads come here for every batch.
    identifier = threading.get_ident()
    with _lock:
        block = _blocks.pop(identifier, None)
        if _forks_waiting:
            _changed.notify_all()
    try:
        condition.wait()
    finally:
        with _lock:
            if block is not None:
                block.is_given_up = False
                _blocks[identifier] = block
            if is_pending:
                _update_pending()


def let_through() -> None:
    """Let waiting forks happen now. The calling thread must hold no lock."""
    if not is_pending:
        return
    with _lock:
        block = _leave()
        # No fork waits for a thread that is in no block.
        while block is not None and _forks_waiting:
            _changed.wait()
        _return_to(block)


def _thread_name(identifier: int) -> str:
    # `current_thread` would keep an object for a thread that `threading` has not started.
    return next((each.name for each in threading.enumerate() if each.ident == identifier), "of presave")


def _leave() -> _Block | None:
    block = _blocks.pop(threading.get_ident(), None)
    if _forks_waiting:
        _changed.notify_all()
    return block


def _return_to(block: _Block | None) -> None:
    if block is not None:
        block.is_given_up = False
        _blocks[threading.get_ident()] = block
    _update_pending()


def _update_pending() -> None:
    global is_pending
    is_pending = _forks_waiting > 0 or any(map(attrgetter("is_given_up"), _blocks.values()))


def _before_fork() -> None:
    """Wait for the blocks of other threads, then hold `_changed` until the fork is done, so that no block begins."""
    global _forks_waiting
    identifier = threading.get_ident()
    _changed.acquire()
    began = time.monotonic()
    _given_up.clear()
    _forking.add(identifier)
    _forks_waiting += 1
    _update_pending()
    _changed.notify_all()
    try:
        while blocks := _pending_blocks():
            left = began + min(block.patience for block in blocks) - time.monotonic()
            if left > 0:
                _changed.wait(left)
                continue
            for block in blocks:
                if began + block.patience <= time.monotonic():
                    block.is_given_up = True
                    _given_up.append(block)
    finally:
        _forks_waiting -= 1
        _update_pending()
        _changed.notify_all()


def _pending_blocks() -> list[_Block]:
    return [block for identifier, block in _blocks.items() if identifier not in _forking and not block.is_given_up]


def _after_fork_in_parent() -> None:
    given_up = list(_given_up)
    _forking.discard(threading.get_ident())
    _changed.release()
    for block in given_up:
        warnings.warn(
            f"a fork has waited {block.patience:g} s for thread {block.thread!r} and has not waited longer: locks that "
            "the thread holds stay locked forever in the child. Fork before you begin to iterate, or start child "
            "processes with 'spawn' or 'forkserver'",
            RuntimeWarning,
            stacklevel=2,
        )


def _after_fork_in_child() -> None:
    global _forks_waiting
    identifier = threading.get_ident()
    for other in [each for each in _blocks if each != identifier]:
        del _blocks[other]
    _forking.clear()
    _forks_waiting = 0
    _update_pending()
    _changed.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
