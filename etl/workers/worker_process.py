"""One worker process as the process it loads for sees it: started, told what to load, heard, ended."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import pickle
import signal
import threading
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from etl.loading.loading import nowhere
from etl.pipeline import READING
from etl.record import RecordError
from etl.workers.crew import Crew, Job
from etl.workers.shared_memory import SharedMemory
from etl.workers.shared_object import SharedObject
from etl.workers.worker import Done, Failed, Ready, Task, describe

# How long workers have to finish the record they are at when they are to end.
END_PATIENCE_SECONDS = 1.0
# How long to wait for a server process that is ending, until there may be another.
SERVER_PATIENCE_SECONDS = 5.0
# What the server process imports; the last undoes what it was started with.
PRELOADED = ("etl.workers.worker", "etl.workers.fork_server")

# The first thing that a worker does, before it imports what takes long: a Ctrl-C, which the terminal sends to it too,
# is the parent's to handle.
START = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
from etl.workers.worker import run
run(connection, memory(), where, loader(), parts)
"""
ADVICE = (
    "the traceback above says more. Worker processes import the program's script: what it does must be under "
    "if __name__ == '__main__':"
)


@dataclass(eq=False)
class Part:
    """Records of a batch that one worker has to load. What it reads and writes lives as long as this."""

    crew: Crew
    job: Job
    first: int
    last: int
    # Of the records, in shared memory.
    numbers: np.ndarray


class Worker:
    """One process, and what it has been told to load and has not answered."""

    def __init__(self, context: Any, memory: SharedMemory, where: np.ndarray, loader: SharedObject) -> None:
        self.connection, self._theirs = context.Pipe()
        self.where = where
        self.where[:] = nowhere()
        self.parts: deque[Part] = deque()
        self.is_ready = False
        self.is_lost = False
        # When it was last known to do something.
        self.heard = time.monotonic()
        self._context = context
        self._memory = memory
        self._loader = loader
        self._process: Any = None
        self._start_error: Exception | None = None
        self._is_to_end = False
        # Re-entrant, because the collector may end the pool in a thread that is inside it.
        self._lock = threading.RLock()

    @property
    def pid(self) -> int | None:
        """The process's number; None before it has started."""
        return None if self._process is None else self._process.pid

    @property
    def sentinel(self) -> int | None:
        """What `wait` returns once the process has ended; None before it has started."""
        return None if self._process is None else self._process.sentinel

    @property
    def is_idle(self) -> bool:
        """Whether it has started, and is or was at no record."""
        return self.is_ready and int(self.where[0]) < 0

    def start(self) -> None:
        """Start the process; what goes wrong is told by `death`."""
        try:
            process = self._start_process()
        except Exception as error:  # noqa: BLE001 - it belongs to the thread that waits for a batch
            self._start_error, process = error, None
        self._theirs.close()
        with self._lock:
            self._process = process
            is_to_end = self._is_to_end
        if is_to_end:
            self._end_process(0)

    def send(self, task: Task) -> None:
        """Have it do `task` after those that it has."""
        with contextlib.suppress(OSError):  # it has ended, which `receive` tells
            self.connection.send_bytes(pickle.dumps(task))

    def receive(self) -> Ready | Done | Failed | None:
        """Its next message; None once it has ended."""
        try:
            message: Ready | Done | Failed = pickle.loads(self.connection.recv_bytes())  # noqa: S301 - our own process
        except (EOFError, OSError):
            return None
        self.heard = time.monotonic()
        return message

    def kill(self) -> None:
        """End the process at once, or as soon as it has started."""
        with self._lock:
            self._is_to_end = self.is_lost = True
            if self._process is not None:
                self._process.kill()

    def has_ended(self) -> bool:
        """Whether it was lost, or its process has ended or could not be started."""
        with self._lock:
            if self.is_lost or self._start_error is not None:
                return True
            return self._process is not None and self._process.exitcode is not None

    def end(self, patience: float) -> None:
        """Have the process end, kill it after `patience` seconds, and give back what this one has of it."""
        with self._lock:
            self._is_to_end = self.is_lost = True
            self.connection.close()
        self._end_process(patience)
        self.parts.clear()

    def give_up(self) -> None:
        """Give back what was made for a process that is not going to be started."""
        self.connection.close()
        self._theirs.close()

    def death(self) -> Exception:
        """Why it has ended."""
        if self._start_error is not None:
            return ChildProcessError(f"a worker process cannot be started ({describe(self._start_error)}); {ADVICE}")
        with self._lock:
            if self._process is None:
                return ChildProcessError("a worker process was ended")
            self._process.join(END_PATIENCE_SECONDS)
            code = self._process.exitcode
        if code is not None and code < 0:
            reason = " (out of memory?)" if -code == signal.SIGKILL else ""
            ended = f"worker process {self.pid} was killed by signal {-code}{reason}"
        else:
            ended = f"worker process {self.pid} ended with exit code {code}"
        return ChildProcessError(ended if self.is_ready else f"{ended} while it started; {ADVICE}")

    def error_at_first_part(self, cause: BaseException) -> RecordError:
        """The error for `cause` having happened to the first of its parts."""
        part = self.parts[0]
        number, place = int(self.where[0]), int(self.where[1])
        if number < 0:  # it had not begun
            number, place = int(part.job.loading.numbers[part.first]), READING
        error = part.job.loading.loader.error_at([number, place, 0], cause)
        error.__cause__ = cause
        return error

    def _start_process(self) -> Any:
        deadline = time.monotonic() + SERVER_PATIENCE_SECONDS
        while True:
            process = self._context.Process(
                target=exec, args=(START, self._arguments()), name="etl-worker", daemon=True
            )
            try:
                _start_shielded(process)
            except (ConnectionError, EOFError):
                # A server that was killed still counts as running until the last of it is gone.
                if not isinstance(process, ForkServerProcess) or self._is_to_end or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return process

    def _arguments(self) -> dict[str, Any]:
        # Only what the standard library can unpickle: see START.
        return {
            "connection": self._theirs,
            "memory": _Descriptor(self._memory.fd),
            "where": tuple(self._memory.place(self.where))[:3],
            "loader": _Descriptor(self._loader.fd),
            "parts": self._loader.parts,
        }

    def _end_process(self, patience: float) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        process.join(patience)
        if process.exitcode is None:
            process.kill()
            process.join()
        process.close()


class _Descriptor:
    """A descriptor for a process that is being started; unpickled there, it is a function that gives the descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> Any:
        return functools.partial, (DupFd(self._fd).detach,)


def _start_shielded(process: Any) -> None:
    """Start `process` so that a Ctrl-C does not reach it before it has blocked that."""
    # It unblocks SIGINT when it starts its process, and so comes first.
    multiprocessing.resource_tracker.ensure_running()
    # A new interpreter, the server's too, inherits the mask of the thread that starts it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        if isinstance(process, ForkServerProcess):
            _preload()
            multiprocessing.forkserver.ensure_running()
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _preload() -> None:
    """Have the server process, if it is yet to start, import what workers need, once for all of them."""
    # There is no public way to add to what the program itself has chosen.
    chosen = multiprocessing.forkserver._forkserver._preload_modules  # type: ignore[attr-defined]
    if PRELOADED[-1] not in chosen:
        multiprocessing.set_forkserver_preload([*chosen, *PRELOADED])
