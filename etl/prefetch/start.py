"""How worker processes are started: in the caller's thread, without waiting for the server process that forks them.

What a start needs takes locks of the standard library (`tempfile`'s, the fork server's, the resource tracker's, that of
a buffered stdout). If a thread in the background took them, a fork of the caller's could inherit them held.
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
# How long to wait for a server process that is ending, until there may be another.
SERVER_PATIENCE_SECONDS = 5.0
# What the server process imports; the last undoes what it was started with.
PRELOADED = ("etl.prefetch.worker_main", "etl.prefetch.fork_server")
# The exit code of a process whose end cannot be known, as the standard library has it.
UNKNOWN_EXIT_CODE = 255


def start_process(start_method: str, program: str, arguments: dict[str, Any]) -> Any:
    """Start a daemon process that runs `program` with `arguments` as its global names, and return it.

    With "forkserver" it may not have been forked yet, and its `pid` is None until it is.
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
            # A server that was killed still counts as running until the last of it is gone.
            if start_method != "forkserver" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return process


def leave_to_parent(process: Any) -> None:
    """Close what a fork has inherited of `process`, which belongs to the process that was forked."""
    process._popen.leave_to_parent()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Have a Ctrl-C not reach a process that is started, until that has blocked it by itself."""
    # It unblocks SIGINT when it starts its process, and so comes first.
    multiprocessing.resource_tracker.ensure_running()
    # A new interpreter, the server's too, inherits the mask of the thread that starts it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _ensure_server() -> None:
    """Have the server process run, and import what workers need, once for all of them."""
    # There is no public way to add to what the program itself has chosen, nor to have a server of one's own.
    server: Any = multiprocessing.forkserver._forkserver
    if PRELOADED[-1] not in server._preload_modules:
        multiprocessing.set_forkserver_preload([*server._preload_modules, *PRELOADED])
    try:
        multiprocessing.forkserver.ensure_running()
    except ChildProcessError:
        # It is the server of the process that this one was forked from.
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = server._forkserver_address = server._forkserver_pid = None
        multiprocessing.forkserver.ensure_running()


class _Child(popen_fork.Popen):
    """A process as the one that has started it sees it. A fork of that one neither signals it nor waits for it.

    At its end a fork would otherwise terminate the daemon processes of its parent, which it believes to be its own.
    """

    finalizer: Any

    def __init__(self, process: Any) -> None:
        self._owner = os.getpid()
        super().__init__(process)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code, None while it runs."""
        return super().poll(flag) if os.getpid() == self._owner else UNKNOWN_EXIT_CODE

    def leave_to_parent(self) -> None:
        """Close the descriptors that a fork has inherited, of which `finalizer` takes care in no fork."""
        for descriptor in self.finalizer._args:
            os.close(descriptor)

    def _send_signal(self, sig: int) -> None:
        if os.getpid() == self._owner:
            super()._send_signal(sig)  # type: ignore[misc]


class _SpawnedChild(_Child, popen_spawn_posix.Popen):
    """A new interpreter."""


class _ForkedChild(_Child, popen_forkserver.Popen):
    """A process that the server forks as soon as it has imported what it is to: `pid` is None until then."""

    sentinel: int
    _fds: list[int]

    def __init__(self, process: Any) -> None:
        self.pid: int | None = None  # type: ignore[assignment]
        # Re-entrant, because the collector may end a pool in a thread that polls.
        self._polling = threading.RLock()
        super().__init__(process)

    def _launch(self, process: Any) -> None:
        # As the standard library's, but that it does not wait for the number of the process.
        data = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process.name), data)
            reduction.dump(process, data)
        finally:
            set_spawning_popen(None)
        self.sentinel, writing = multiprocessing.forkserver.connect_to_new_process(self._fds)
        # By its end the process knows that this one has ended.
        lifeline = os.dup(writing)
        self.finalizer = util.Finalize(self, util.close_fds, (lifeline, self.sentinel))  # type: ignore[attr-defined]
        with open(writing, "wb") as pipe:  # noqa: PTH123 - a descriptor
            pipe.write(data.getbuffer())

    def poll(self, flag: int = os.WNOHANG) -> int | None:  # noqa: ARG002 - it never waits
        """Return the exit code, None while it runs or is yet to be forked."""
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
        """Wait for the end, at most `timeout` seconds; return as `poll` does."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if not wait([self.sentinel], None if deadline is None else max(0.0, deadline - time.monotonic())):
                break
        return self.returncode

    def _send_signal(self, sig: int) -> None:
        if self.poll() is None and self.pid is None:
            # There is no process yet. Its connection will be closed when there is, and it ends.
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
