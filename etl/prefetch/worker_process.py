"""One worker process, seen from its parent, which starts it, sends tasks, receives answers and ends it."""

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
from numpy.typing import NDArray

from etl.images.settings import Setting, pillow_settings
from etl.loading.batch_plan import BatchPlan
from etl.prefetch.prefetcher import PendingBatch, Prefetcher
from etl.prefetch.shared_memory import SharedMemory, SharedObject
from etl.prefetch.start import UNKNOWN_EXIT_CODE, start_process
from etl.prefetch.worker_main import Done, Failed, NewSettings, Ready, Task, describe
from etl.runtime.inherited import inherited_policies
from etl.sources.record import RecordError
from etl.stages.cursor import IDLE, READING, SharedCursor, ThreadCursor

# Seconds that a worker has to finish its current record before it is killed.
END_PATIENCE_SECONDS = 1.0

# A worker blocks SIGINT before its long imports: the terminal sends a Ctrl-C to it, too, but the parent handles it.
START = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
from etl.prefetch.worker_main import run
run(connection, memory(), cursor, loader(), parts, policies, pillow, main)
"""


@dataclass(eq=False)
class Chunk:
    """Rows `first` to `last` (exclusive) of a batch that one worker has to load for `prefetcher`.

    It keeps the memory alive that the worker reads and writes. `indices` (int64) are the records, in shared memory.
    """

    prefetcher: Prefetcher
    pending: PendingBatch
    plan: BatchPlan
    first: int
    last: int
    indices: NDArray[np.int64]


class Worker:
    """One worker process, and the chunks that it was sent and has not answered.

    Parameters
    ----------
    cursor : uint8 array
        A part of `memory` for the `SharedCursor` of this worker.
    """

    def __init__(self, start_method: str, memory: SharedMemory, cursor: np.ndarray, loader: SharedObject) -> None:
        self.connection, self._theirs = multiprocessing.Pipe()
        self.cursor = SharedCursor.from_buffer(cursor.data)
        self.cursor.record, self.cursor.stage, self.cursor.cancelled = IDLE, READING, False
        self.chunks: deque[Chunk] = deque()
        # Time at which the process said that it has started; 0 before.
        self.ready_at = 0.0
        self.is_lost = False
        # Time of its latest message.
        self.heard = time.monotonic()
        self._start_method = start_method
        self._memory = memory
        self._cursor_memory = cursor
        self._loader = loader
        self._process: Any = None
        self._pillow: list[Setting] = []
        # As text, because the error's traceback would keep the caller's frames alive, and with them the iterator.
        self._start_error: str | None = None
        self._is_to_end = False
        # Re-entrant, because the collector may end the pool in a thread that is inside it.
        self._lock = threading.RLock()

    @property
    def pid(self) -> int | None:
        """The process id; None before the process was forked."""
        process = self._process
        if process is None:
            return None
        process.is_alive()  # reads the id from the fork server
        number: int | None = process.pid
        return number

    @property
    def sentinel(self) -> int | None:
        """The descriptor that becomes readable when the process has ended; None before the process was started."""
        return None if self._process is None else self._process.sentinel

    @property
    def is_ready(self) -> bool:
        """True if the process has started."""
        return self.ready_at > 0

    @property
    def is_idle(self) -> bool:
        """True if the worker has started and is loading no record, or was never forked because the server ended."""
        would_have_started = self.is_ready or (self._process is not None and self.pid is None)
        return would_have_started and self.cursor.record == IDLE

    def start(self) -> None:
        """Start the process. `death` returns the error if that fails."""
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

    def update_settings(self) -> None:
        """Let the process take over settings of Pillow that have changed, after the tasks that it has."""
        current = pillow_settings()
        if current != self._pillow:
            self._pillow = current
            self.send(NewSettings(current))

    def send(self, task: Task | NewSettings) -> None:
        """Send the process a task, to be done after the tasks that it has."""
        with contextlib.suppress(OSError):  # the process has ended: `receive` returns None
            self.connection.send_bytes(pickle.dumps(task))

    def receive(self) -> Ready | Done | Failed | None:
        """Return the next message of the process; None after it has ended."""
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
        """Return whether the worker was lost, or its process has ended or could not be started."""
        with self._lock:
            if self.is_lost or self._start_error is not None:
                return True
            return self._process is not None and self._process.exitcode is not None

    def end(self, patience: float) -> None:
        """End the process, kill it after `patience` seconds, and release its connection and chunks."""
        with self._lock:
            self._is_to_end = self.is_lost = True
            self.connection.close()
            self._theirs.close()
        self._end_process(patience)
        self.chunks.clear()

    def leave_to_parent(self) -> None:
        """In a fork of the worker's parent, close the descriptors that were inherited."""
        with contextlib.suppress(OSError):  # a thread of the parent may have been closing them
            self.connection.close()
            self._theirs.close()
            if self._process is not None:
                self._process._popen.leave_to_parent()

    def death(self) -> Exception:
        """Return an error that says why the process has ended."""
        if self._start_error is not None:
            return ChildProcessError(f"a worker process cannot be started ({self._start_error})")
        with self._lock:
            if self._process is None:
                return ChildProcessError("a worker process was ended")
            self._process.join(END_PATIENCE_SECONDS)
            code, pid = self._process.exitcode, self._process.pid
        if pid is None:
            return ChildProcessError("the server process that starts workers has ended; its output may say why")
        if code is not None and code < 0:
            reason = " (out of memory?)" if -code == signal.SIGKILL else ""
            ended = f"worker process {pid} was killed by signal {-code}{reason}"
        else:
            ended = f"worker process {pid} ended with exit code {code}"
            ended += " or an unknown one" * (code == UNKNOWN_EXIT_CODE)
        return ChildProcessError(ended if self.is_ready else f"{ended} while it started; its output may say why")

    def name_error(self, cause: BaseException) -> RecordError:
        """Return an error for `cause` that names the record that the worker is loading, in the first of its chunks."""
        plan = self.chunks[0].plan
        at = ThreadCursor(self.cursor.record, self.cursor.stage)
        if at.record == IDLE:  # the worker had not begun the chunk
            at = ThreadCursor(int(plan.indices[self.chunks[0].first]), READING)
        error = plan.loader.name_error(at, cause)
        error.__cause__ = cause
        return error

    def _arguments(self) -> dict[str, Any]:
        self._pillow = pillow_settings()
        # Only what the standard library can unpickle: see START.
        return {
            "connection": self._theirs,
            "memory": _Descriptor(self._memory.fd),
            "cursor": tuple(self._memory.place(self._cursor_memory))[:3],
            "loader": _Descriptor(self._loader.fd),
            "parts": self._loader.parts,
            "policies": inherited_policies(),
            "pillow": self._pillow,
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
    """A descriptor to pass to a new process. Unpickled there, it is a function that returns the descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __reduce__(self) -> Any:
        return functools.partial, (DupFd(self._fd).detach,)
