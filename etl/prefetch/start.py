"""Starting of worker processes, in the caller's thread and without waiting for the server process that forks them.

Starting a process takes locks of the standard library (of `tempfile`, the fork server, the resource tracker and
buffered stdout). If a background thread took them, a fork of this process could inherit them locked.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import popen_fork, popen_forkserver, popen_spawn_posix, reduction, spawn, util
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess, SpawnProcess, set_spawning_popen
from typing import Any

START_METHODS = ("forkserver", "spawn")
# How long to wait for a server process to end before another one is started.
SERVER_PATIENCE_SECONDS = 5.0
# Modules that the server process imports. The last one unblocks SIGINT.
PRELOADED = ("etl.prefetch.worker_main", "etl.prefetch.fork_server")
# The exit code of a process whose end cannot be known, as in the standard library.
UNKNOWN_EXIT_CODE = 255


def start_process(start_method: str, program: str, arguments: dict[str, Any]) -> Any:
    """Start a daemon process and return it.

    With "forkserver" it may not have been forked yet; until then its `pid` is None.

    Parameters
    ----------
    start_method : {"forkserver", "spawn"}
        Method of starting the process.
    program : str
        Python source to run.
    arguments : dict
        The global names of `program`.
    """
    deadline = time.monotonic() + SERVER_PATIENCE_SECONDS
    while True:
        process = _PROCESSES[start_method](target=exec, args=(program, arguments), name="etl-worker", daemon=True)
        try:
            with _interrupts_blocked():
                if start_method == "forkserver":
                    _ensure_server()
                process.start()
        except (ConnectionError, EOFError):
            # A server that was killed counts as running until it is gone entirely.
            if start_method != "forkserver" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return process


def leave_to_parent(process: Any) -> None:
    """In a fork, close the inherited descriptors of `process`, which belongs to the parent."""
    process._popen.leave_to_parent()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT for processes that are started meanwhile, until they block it themselves."""
    # First, because the resource tracker unblocks SIGINT when it starts its own process.
    multiprocessing.resource_tracker.ensure_running()
    # A new interpreter, including the server's, inherits the signal mask of the thread that starts it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _ensure_server() -> None:
    """Make sure that the server process runs, which imports what workers need once for all of them."""
    # There is no public way to add to the modules that the program has chosen, or to have a separate server.
    server: Any = multiprocessing.forkserver._forkserver
    if PRELOADED[-1] not in server._preload_modules:
        multiprocessing.set_forkserver_preload([*server._preload_modules, *PRELOADED])
    try:
        multiprocessing.forkserver.ensure_running()
    except ChildProcessError:
        # The server belongs to the process that this one was forked from.
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = server._forkserver_address = server._forkserver_pid = None
        multiprocessing.forkserver.ensure_running()


class _Child(popen_fork.Popen):
    """A worker process, seen from its parent. A fork of the parent neither signals it nor waits for it.

    Otherwise a fork would, when it ends, terminate its parent's daemon processes as if they were its own.
    """

    finalizer: Any

    def __init__(self, process: Any) -> None:
        self._owner = os.getpid()
        super().__init__(process)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code; None while the process runs."""
        return super().poll(flag) if os.getpid() == self._owner else UNKNOWN_EXIT_CODE

    def leave_to_parent(self) -> None:
        """Close the descriptors that a fork has inherited; `finalizer` does nothing in a fork."""
        for descriptor in self.finalizer._args:
            os.close(descriptor)

    def _send_signal(self, sig: int) -> None:
        if os.getpid() == self._owner:
            super()._send_signal(sig)  # type: ignore[misc]


class _SpawnedChild(_Child, popen_spawn_posix.Popen):
    """A new interpreter."""


class _ForkedChild(_Child, popen_forkserver.Popen):
    """A process that the server forks once its imports are done. Until then `pid` is None."""

    sentinel: int
    _fds: list[int]

    def __init__(self, process: Any) -> None:
        self.pid: int | None = None  # type: ignore[assignment]
        # Re-entrant, because the garbage collector may end a pool in a thread that polls.
        self._polling = threading.RLock()
        super().__init__(process)

    def _launch(self, process: Any) -> None:
        # As in the standard library, except that it does not wait for the process id.
        data = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process.name), data)
            reduction.dump(process, data)
        finally:
            set_spawning_popen(None)
        self.sentinel, writing = multiprocessing.forkserver.connect_to_new_process(self._fds)
        # When this descriptor closes, the process knows that its parent has ended.
        lifeline = os.dup(writing)
        self.finalizer = util.Finalize(self, util.close_fds, (lifeline, self.sentinel))  # type: ignore[attr-defined]
        with open(writing, "wb") as pipe:  # noqa: PTH123 - a descriptor
            pipe.write(data.getbuffer())

    def poll(self, flag: int = os.WNOHANG) -> int | None:  # noqa: ARG002 - it never waits
        """Return the exit code; None while the process runs or is yet to be forked."""
        if os.getpid() != self._owner:
            return UNKNOWN_EXIT_CODE
        # Two threads must not read the same answer.
        with self._polling:
            while self.returncode is None and wait([self.sentinel], 0):
                try:
                    answer = multiprocessing.forkserver.read_signed(self.sentinel)
                except (OSError, EOFError):  # the server was killed
                    self.returncode = UNKNOWN_EXIT_CODE
                else:
                    if self.pid is None:
                        self.pid = answer
                    else:
                        self.returncode = answer
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait at most `timeout` seconds for the process to end; return as `poll` does."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if not wait([self.sentinel], None if deadline is None else max(0.0, deadline - time.monotonic())):
                break
        return self.returncode

    def _send_signal(self, sig: int) -> None:
        if self.poll() is None and self.pid is None:
            # There is no process yet. When there is, its connection will be closed, which ends it.
            self.returncode = -sig
        else:
            super()._send_signal(sig)


class _SpawnedProcess(SpawnProcess):
    @staticmethod
    def _Popen(process: Any) -> _SpawnedChild:  # noqa: N802 - the standard library's name
        return _SpawnedChild(process)

    def __reduce__(self) -> Any:
        # The worker unpickles it before it has imported anything of this package.
        return object.__new__, (SpawnProcess,), self.__dict__


class _ForkedProcess(ForkServerProcess):
    @staticmethod
    def _Popen(process: Any) -> _ForkedChild:  # noqa: N802 - the standard library's name
        return _ForkedChild(process)

    def __reduce__(self) -> Any:
        return object.__new__, (ForkServerProcess,), self.__dict__


_PROCESSES: dict[str, Any] = {"forkserver": _ForkedProcess, "spawn": _SpawnedProcess}
