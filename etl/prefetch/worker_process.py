"""One worker process as its parent sees it: it is started, sent tasks, heard, and ended."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import pickle
import signal
import threading
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from etl.loading.batch_plan import BatchPlan
from etl.prefetch.prefetcher import PendingBatch, Prefetcher
from etl.prefetch.shared_memory import SharedMemory, SharedObject
from etl.prefetch.start import leave_to_parent, start_process
from etl.prefetch.worker_main import Done, Failed, Ready, Task, describe
from etl.sources.record import RecordError
from etl.stages.cursor import IDLE, READING, SharedCursor, ThreadCursor

# How long workers have to finish the record they are at when they are to end.
END_PATIENCE_SECONDS = 1.0

# The first thing that a worker does, before it imports what takes long: a Ctrl-C, which the terminal sends to it too,
# is the parent's to handle.
START = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
from etl.prefetch.worker_main import run
run(connection, memory(), cursor, loader(), parts)
"""
ADVICE = (
    "the traceback above says more. Worker processes import the program's script: what it does must be under "
    "if __name__ == '__main__':"
)


@dataclass(eq=False)
class Chunk:
    """Rows of a batch that one worker has to load. The memory that it reads and writes lives as long as this.

    Attributes
    ----------
    prefetcher : Prefetcher
        The one that waits for it.
    pending : PendingBatch
        The batch.
    plan : BatchPlan
        Its records and arrays.
    first, last : int
        The first row, and the row after the last one.
    indices : int64 array of shape (last - first,)
        The records, in shared memory.
    """

    prefetcher: Prefetcher
    pending: PendingBatch
    plan: BatchPlan
    first: int
    last: int
    indices: np.ndarray


class Worker:
    """One process, and the chunks that it was sent and has not answered.

    Parameters
    ----------
    start_method : {"forkserver", "spawn"}
        How the process is started.
    memory : SharedMemory
        Batches are made of it.
    cursor : uint8 array
        Memory of `memory` for the position of this worker.
    loader : SharedObject
        Loads the records.
    """

    def __init__(self, start_method: str, memory: SharedMemory, cursor: np.ndarray, loader: SharedObject) -> None:
        self.connection, self._theirs = multiprocessing.Pipe()
        self.cursor = SharedCursor.from_buffer(cursor.data)
        self.cursor.record, self.cursor.stage, self.cursor.cancelled = IDLE, READING, False
        self.chunks: deque[Chunk] = deque()
        self.is_ready = False
        self.is_lost = False
        # When it was last known to do something.
        self.heard = time.monotonic()
        self._start_method = start_method
        self._memory = memory
        self._cursor_memory = cursor
        self._loader = loader
        self._process: Any = None
        # As text: the error's traceback would keep the caller's frames alive, and so the iterator.
        self._start_error: str | None = None
        self._is_to_end = False
        # Re-entrant, because the collector may end the pool in a thread that is inside it.
        self._lock = threading.RLock()

    @property
    def pid(self) -> int | None:
        """The process's number; None before it was forked."""
        process = self._process
        if process is None:
            return None
        process.is_alive()  # which asks the server for it
        number: int | None = process.pid
        return number

    @property
    def sentinel(self) -> int | None:
        """The descriptor that `wait` returns when the process has ended; None before it has started."""
        return None if self._process is None else self._process.sentinel

    @property
    def is_idle(self) -> bool:
        """True if it is or was at no record, and has started, unless the server that was to fork it has ended."""
        would_have_started = self.is_ready or (self._process is not None and self.pid is None)
        return would_have_started and self.cursor.record == IDLE

    def start(self) -> None:
        """Start the process; an error is kept for `death`."""
        try:
            process = start_process(self._start_method, START, self._arguments())
        except Exception as error:  # noqa: BLE001 - it belongs to the thread that waits for a batch
            self._start_error, process = describe(error), None
        self._theirs.close()
        with self._lock:
            self._process = process
            is_to_end = self._is_to_end
        if is_to_end:
            self._end_process(0)

    def send(self, task: Task) -> None:
        """Send it a task, which it does after those that it has."""
        with contextlib.suppress(OSError):  # it has ended, which `receive` tells
            self.connection.send_bytes(pickle.dumps(task))

    def receive(self) -> Ready | Done | Failed | None:
        """Return its next message; None after it has ended."""
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
        """Return whether it was lost, or its process has ended or could not be started."""
        with self._lock:
            if self.is_lost or self._start_error is not None:
                return True
            return self._process is not None and self._process.exitcode is not None

    def end(self, patience: float) -> None:
        """End the process, kill it after `patience` seconds, and release what this process has of it."""
        with self._lock:
            self._is_to_end = self.is_lost = True
            self.connection.close()
            self._theirs.close()
        self._end_process(patience)
        self.chunks.clear()

    def leave_to_parent(self) -> None:
        """Close what this process, a fork of the worker's parent, has inherited of it."""
        with contextlib.suppress(OSError):  # another thread may have been about to do it
            self.connection.close()
            self._theirs.close()
            if self._process is not None:
                leave_to_parent(self._process)

    def death(self) -> Exception:
        """Return an error that says why it has ended."""
        if self._start_error is not None:
            return ChildProcessError(f"a worker process cannot be started ({self._start_error}); {ADVICE}")
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

    def name_error(self, cause: BaseException) -> RecordError:
        """Return an error for `cause` that names the record that the worker is at, in the first of its chunks."""
        plan = self.chunks[0].plan
        at = ThreadCursor(self.cursor.record, self.cursor.stage)
        if at.record == IDLE:  # it had not begun
            at = ThreadCursor(int(plan.indices[self.chunks[0].first]), READING)
        error = plan.loader.name_error(at, cause)
        error.__cause__ = cause
        return error

    def _arguments(self) -> dict[str, Any]:
        # Only what the standard library can unpickle: see START.
        return {
            "connection": self._theirs,
            "memory": _Descriptor(self._memory.fd),
            "cursor": tuple(self._memory.place(self._cursor_memory))[:3],
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
