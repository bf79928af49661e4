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
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import popen_fork, popen_forkserver, popen_spawn_posix, process, reduction, spawn, util
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess, SpawnProcess, set_spawning_popen
from typing import Any

# How long to wait for a server process to end before another one is started.
SERVER_PATIENCE_SECONDS = 5.0
# Modules that the server process imports. The last one unblocks SIGINT.
PRELOADED = ("etl.prefetch.worker_main", "etl.prefetch.fork_server")
# The exit code of a process whose end cannot be known, as in the standard library.
UNKNOWN_EXIT_CODE = 255
# The most bytes in the path of a socket's folder: the socket's own has at most 107, its name and a slash take 18.
MAX_SOCKET_FOLDER = 89
# Folders for the server's socket if the usual temporary folder is unusable.
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - a new folder in it, of this user alone
# Preparation data of the standard library that name the program's main script.
MAIN_KEYS = ("init_main_from_name", "init_main_from_path")
ADVICE = "worker processes import the program's main script: what it runs must be under if __name__ == '__main__':"


def start_process(start_method: str, program: str, arguments: dict[str, Any]) -> Any:
    """Start a daemon process and return it.

    With "forkserver" it may not have been forked yet; until then its `pid` is None.

    Parameters
    ----------
    arguments : dict
        The global names of `program`. A further one is `main`, for `import_main`.

    Raises
    ------
    RuntimeError
        If this process is a worker that imports the program's main script.
    OSError
        If descriptors, memory or processes run out, or there is no folder for the server's socket.
    """
    current: Any = process.current_process()
    if getattr(current, "_inheriting", False):
        raise RuntimeError(ADVICE)
    main = {key: value for key, value in spawn.get_preparation_data("").items() if key in MAIN_KEYS}
    script = main.get("init_main_from_path")
    if script is not None and not os.path.exists(script):  # noqa: PTH110 - standard input, which no worker can import
        main = {}
    arguments = {**arguments, "main": main}
    deadline = time.monotonic() + SERVER_PATIENCE_SECONDS
    while True:
        worker = _PROCESSES[start_method](target=exec, args=(program, arguments), name="etl-worker", daemon=True)
        try:
            with _interrupts_blocked():
                if start_method == "forkserver":
                    _ensure_server()
                worker.start()
        except (ConnectionError, EOFError, FileNotFoundError):
            # A server that was killed counts as running until it is gone entirely. Its socket may be removed now.
            if start_method != "forkserver" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return worker


def import_main(main: dict[str, str]) -> None:
    """In a worker, import the program's main script as the standard library does; `main` comes from `start_process`.

    Raises `ChildProcessError` that names the script and the cause if that fails.
    """
    current: Any = process.current_process()
    current._inheriting = True  # so that nothing starts a process meanwhile
    try:
        if "init_main_from_name" in main:
            spawn._fixup_main_from_name(main["init_main_from_name"])  # type: ignore[attr-defined]
        elif "init_main_from_path" in main:
            spawn._fixup_main_from_path(main["init_main_from_path"])  # type: ignore[attr-defined]
    except BaseException as error:
        cause = f"{type(error).__name__}: {error}"
        if isinstance(error, SystemExit):  # the script does not only define
            cause = f"{cause}; {ADVICE}"
        raise ChildProcessError(
            f"a worker process cannot import the program's main script, {next(iter(main.values()))} ({cause})"
        ) from error
    finally:
        del current._inheriting


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT for processes that are started meanwhile, until they block it themselves."""
    # First, because the resource tracker unblocks SIGINT when it starts its own process.
    tracker: Any = multiprocessing.resource_tracker._resource_tracker
    if not _is_pipe(tracker._fd):
        tracker._fd = tracker._pid = None
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
        # Not the main script, which is the default: an error in it would end the server, and nothing would know why.
        chosen = [] if server._preload_modules == ["__main__"] else server._preload_modules
        multiprocessing.set_forkserver_preload([*chosen, *PRELOADED])
    address = server._forkserver_address
    # The program may have closed all descriptors, and the temporary folder may have been tidied.
    if address is not None and not (_is_pipe(server._forkserver_alive_fd) and os.path.exists(address)):  # noqa: PTH110
        _forget(server)
    _ensure_socket_folder()
    try:
        multiprocessing.forkserver.ensure_running()
    except ChildProcessError:
        # The server belongs to the process that this one was forked from.
        _forget(server)
        multiprocessing.forkserver.ensure_running()


def _forget(server: Any) -> None:
    """Leave a server to itself: it ends with its last worker."""
    if _is_pipe(server._forkserver_alive_fd):
        os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = server._forkserver_address = server._forkserver_pid = None


def _is_pipe(descriptor: int | None) -> bool:
    """Return whether a descriptor that was a pipe still is: the program may have closed it, and opened a file since."""
    try:
        return descriptor is not None and stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _ensure_socket_folder() -> None:
    """Give this process a temporary folder that exists, and whose path is short enough for a socket."""
    config: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    folder = config.get("tempdir")
    if folder is not None and len(os.fsencode(folder)) <= MAX_SOCKET_FOLDER and os.path.isdir(folder):  # noqa: PTH112
        return
    for parent in (tempfile.gettempdir(), *SHORT_FOLDERS):
        if len(os.fsencode(parent)) <= MAX_SOCKET_FOLDER - len("/pymp-12345678") and os.access(parent, os.W_OK):
            folder = tempfile.mkdtemp(prefix="pymp-", dir=parent)
            util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
            config["tempdir"] = folder
            return
    raise OSError(
        f"the path of the temporary folder, {tempfile.gettempdir()}, is too long for a socket, and none of "
        f"{', '.join(SHORT_FOLDERS)} is writable; set TMPDIR to another folder, or use start_method='spawn'"
    )


class _Child(popen_fork.Popen):
    """A worker process, seen from its parent. A fork of the parent neither signals it nor waits for it.

    Otherwise a fork would, when it ends, terminate its parent's daemon processes as if they were its own.
    """

    finalizer: Any

    def __init__(self, process: Any) -> None:
        self._owner = os.getpid()
        # Two threads must not read the same answer. Re-entrant, because the garbage collector may end a pool in a
        # thread that polls.
        self._polling = threading.RLock()
        super().__init__(process)

    def leave_to_parent(self) -> None:
        """Close the descriptors that a fork has inherited; `finalizer` does nothing in a fork."""
        for descriptor in self.finalizer._args:
            os.close(descriptor)

    def _send_signal(self, sig: int) -> None:
        if os.getpid() == self._owner:
            super()._send_signal(sig)  # type: ignore[misc]


class _SpawnedChild(_Child, popen_spawn_posix.Popen):
    """A new interpreter."""

    sentinel: int
    _fds: list[int]

    def _launch(self, process: Any) -> None:
        # As in the standard library, except for the data.
        tracker: Any = multiprocessing.resource_tracker.getfd()
        data = _pickled(self, process)
        with contextlib.ExitStack() as stack:
            self.sentinel, writing_end = os.pipe()
            reading_end, lifeline = os.pipe()
            for descriptor in (reading_end, writing_end):
                stack.callback(os.close, descriptor)
            self.finalizer = util.Finalize(self, util.close_fds, (lifeline, self.sentinel))  # type: ignore[attr-defined]
            command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=reading_end)
            executable: Any = spawn.get_executable()
            passed = [*self._fds, tracker, reading_end, writing_end]
            self.pid = util.spawnv_passfds(executable, command, passed)
        with open(lifeline, "wb", closefd=False) as pipe:
            pipe.write(data)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code; None while the process runs."""
        if os.getpid() != self._owner:
            return UNKNOWN_EXIT_CODE
        with self._polling:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, flag)
                except ChildProcessError:  # this program ignores SIGCHLD
                    self.returncode = UNKNOWN_EXIT_CODE
                else:
                    if pid == self.pid:
                        self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class _ForkedChild(_Child, popen_forkserver.Popen):
    """A process that the server forks once its imports are done. Until then `pid` is None."""

    sentinel: int
    _fds: list[int]

    def __init__(self, process: Any) -> None:
        self.pid: int | None = None  # type: ignore[assignment]
        super().__init__(process)

    def _launch(self, process: Any) -> None:
        # As in the standard library, except that it does not wait for the process id.
        data = _pickled(self, process)
        self.sentinel, writing = multiprocessing.forkserver.connect_to_new_process(self._fds)
        # When this descriptor closes, the process knows that its parent has ended.
        lifeline = os.dup(writing)
        self.finalizer = util.Finalize(self, util.close_fds, (lifeline, self.sentinel))  # type: ignore[attr-defined]
        with open(writing, "wb") as pipe:  # noqa: PTH123 - a descriptor
            pipe.write(data)

    def poll(self, flag: int = os.WNOHANG) -> int | None:  # noqa: ARG002 - it never waits
        """Return the exit code; None while the process runs or is yet to be forked."""
        if os.getpid() != self._owner:
            return UNKNOWN_EXIT_CODE
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


def _pickled(child: _Child, process: Any) -> memoryview:
    """Return what a new process reads first. Its program imports the main script later, where it can report errors."""
    data = io.BytesIO()
    preparation = spawn.get_preparation_data(process.name)
    set_spawning_popen(child)
    try:
        reduction.dump({key: value for key, value in preparation.items() if key not in MAIN_KEYS}, data)
        reduction.dump(process, data)
    finally:
        set_spawning_popen(None)
    return data.getbuffer()


class _WorkerProcess(process.BaseProcess):
    # The class of the standard library that the new process unpickles: it has imported nothing of this package yet.
    _unpickled: type[process.BaseProcess]

    def __reduce__(self) -> Any:
        return object.__new__, (self._unpickled,), self.__dict__

    def start(self) -> None:
        """Start the process, as in the standard library, except that a daemonic process may.

        A worker ends with its parent, however that ends.
        """
        this: Any = self
        process._cleanup()  # type: ignore[attr-defined]
        this._popen = this._Popen(self)
        this._sentinel = this._popen.sentinel
        del this._target, this._args, this._kwargs
        process._children.add(self)  # type: ignore[attr-defined]


class _SpawnedProcess(_WorkerProcess):
    _Popen, _unpickled = _SpawnedChild, SpawnProcess


class _ForkedProcess(_WorkerProcess):
    _Popen, _unpickled = _ForkedChild, ForkServerProcess


_PROCESSES: dict[str, Any] = {"forkserver": _ForkedProcess, "spawn": _SpawnedProcess}
