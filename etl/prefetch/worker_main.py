"""The program of a worker process: it receives chunks of batches, loads them, and answers when each is done."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from etl.images.settings import Setting, take_over
from etl.loading.batch_plan import Loader
from etl.prefetch.shared_memory import Parts, Place, SharedView, load_shared
from etl.prefetch.start import import_main
from etl.runtime import batch_boundary
from etl.runtime.inherited import Inherited, inherit
from etl.runtime.thread_policy import ThreadPolicy
from etl.sources.record import RecordError
from etl.stages.cursor import IDLE, Cursor, SharedCursor
from presave.random_seeds import BaseSeeds, seed_process

# Libraries that are first imported for a record read these variables; `ThreadPolicy` limits those already imported.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")


class Task(NamedTuple):
    """Records to load.

    However large the batch is, a task fits into a pipe, so that the sender never waits for a worker that is not
    reading.

    Attributes
    ----------
    indices : Place
        The place of the records' indices, int64.
    epoch : int
        The epoch that the records belong to.
    places : dict of str to Place
        The place of the rows to write, for each field.
    seeds : BaseSeeds
        Seeds the global random generators, together with `key`.
    key : tuple
        Identifies the rows among all that are loaded with these `seeds`.
    """

    indices: Place
    epoch: int
    places: dict[str, Place]
    seeds: BaseSeeds
    key: tuple[object, ...]


class NewSettings(NamedTuple):
    """The settings of Pillow for the tasks that follow."""

    pillow: Sequence[Setting]


class Ready(NamedTuple):
    """The first message: the worker has started."""


class Done(NamedTuple):
    """A task is done. `skipped` has the rows that were skipped, with the reason for each."""

    skipped: Mapping[int, RecordError]


class Failed(NamedTuple):
    """A task, or the worker's start, has failed: the error and its cause, each pickled, and the traceback as text."""

    error: bytes
    cause: bytes
    trace: str

    def unpack(self) -> BaseException:
        """Return the error, with the worker's traceback as the last of its causes."""
        error: BaseException = pickle.loads(self.error)  # noqa: S301 - from a process that this one has started
        cause: BaseException | None = pickle.loads(self.cause)  # noqa: S301
        trace = WorkerTracebackError(self.trace)
        if cause is None:
            error.__cause__ = trace
        else:
            error.__cause__, cause.__cause__ = cause, trace
        return error


class WorkerTracebackError(Exception):
    """The traceback of an error in a worker process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def run(
    connection: Connection,
    memory: int,
    cursor: tuple[int, int, int],
    loader: int,
    parts: Parts,
    policies: Sequence[Inherited],
    pillow: Sequence[Setting],
    main: dict[str, str],
) -> None:
    """Do the tasks that come over `connection`, until it is closed; for the arguments see `Worker._arguments`.

    `cursor` has the first three fields of the `Place` of this worker's `SharedCursor`. `main` is for `import_main`.
    """
    end_with_parent()
    with contextlib.suppress(EOFError, ConnectionError), contextlib.ExitStack() as in_force:
        try:
            import_main(main)
        except ChildProcessError as error:
            _send(connection, _failed(error, error))
            return
        os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
        try:
            view = SharedView(memory)
            place = Place(*cursor, (ctypes.sizeof(SharedCursor),), np.dtype(np.uint8))
            own_cursor = SharedCursor.from_buffer(view.array(place).data)
            own_loader = load_shared(loader, parts)
            os.close(loader)
            take_over(pillow)  # after the imports of the loader's modules, which may have settings of their own
        except Exception as error:  # noqa: BLE001 - the parent raises it
            _refuse(connection, "load the source and the stages", error)
            return
        try:
            in_force.enter_context(inherit(policies))  # "freeze" freezes what the loader consists of, too
        except Exception as error:  # noqa: BLE001 - the parent raises it
            _refuse(connection, "take over the runtime policies of its parent", error)
            return
        with ThreadPolicy(1):
            _send(connection, Ready())
            while True:
                task: Task | NewSettings = pickle.loads(connection.recv_bytes())  # noqa: S301 - from the parent
                if isinstance(task, NewSettings):
                    take_over(task.pillow)
                    continue
                _send(connection, _load(task, own_loader, view, own_cursor))
                batch_boundary()


def end_with_parent() -> None:
    """Make the system end this process as soon as its parent has ended, whatever this process is doing.

    When a pipe that only the parent holds is closed, the system sends SIGIO, which ends a process by default.
    """
    parent = parent_process()
    assert parent is not None  # noqa: S101 - for the type checker
    pipe = parent.sentinel
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([pipe], timeout=0):
        sys.exit()


def _load(task: Task, loader: Loader, memory: SharedView, cursor: Cursor) -> Done | Failed:
    indices = memory.array(task.indices)
    arrays = {name: memory.array(place) for name, place in task.places.items()}
    # For each task, because which worker gets it is a matter of timing.
    seed_process(task.seeds, *task.key)
    try:
        return Done(loader.load(indices, task.epoch, arrays, cursor))
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        if cursor.record == IDLE:
            cursor.record = int(indices[0])
        return _failed(error, loader.name_error(cursor, error))
    finally:
        cursor.record = IDLE


def _refuse(connection: Connection, what: str, error: Exception) -> None:
    """Tell the parent that this worker cannot do `what`."""
    refusal = RuntimeError(f"a worker process cannot {what}: {describe(error)}")
    refusal.__cause__ = error
    _send(connection, _failed(refusal, refusal))


def _failed(error: BaseException, substitute: BaseException) -> Failed:
    """Return a message with `error`, or with `substitute` if `error` does not survive pickling."""
    # cloudpickle, so that the parent can unpickle classes of the program's main script.
    trace = "".join(traceback.format_exception(error))
    cause = _pickled(error.__cause__)
    return Failed(_pickled(error) or cloudpickle.dumps(substitute), cause or cloudpickle.dumps(None), trace)


def _pickled(error: BaseException | None) -> bytes | None:
    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)  # noqa: S301
    except Exception:  # noqa: BLE001 - errors may be of any class
        return None
    return data


def describe(error: BaseException) -> str:
    """Return the type and the text of `error`."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _send(connection: Connection, message: Any) -> None:
    connection.send_bytes(pickle.dumps(message))
