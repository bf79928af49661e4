"""The client side of fresh processes: starts a server (see `server.py`), and sends it requests."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from .instruments import Instruments, current_instruments
from .server import Answer, Failure, Request

if TYPE_CHECKING:
    from typing_extensions import Self

# An error quotes at most this much of what the server wrote to standard error.
TAIL_NBYTES = 4000
# Set before libraries start their thread pools, because a server with threads cannot fork. The forked process then sets
# its number of compute threads.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


# A server that serves a single session has this long to end in order, such as to remove its shared memory.
ENDING_SECONDS = 10.0


class MeasurementError(RuntimeError):
    """An error that made a measurement impossible.

    Parameters
    ----------
    message : str
        The error in one line.
    text : str
        All details, such as a traceback; by default the message.
    is_input : bool
        True if the user's input is wrong.
    reason : str
        The cause alone, without the name of what was measured; by default the message.
    """

    def __init__(self, message: str, text: str = "", is_input: bool = False, reason: str = "") -> None:
        super().__init__(message)
        self.text = text or message
        self.is_input = is_input
        self.reason = reason or message


class Server:
    """A context manager around a server process, in a session of its own.

    The process starts at once, and prepares itself while the caller continues. All methods raise `MeasurementError` if
    the process has ended, does not answer in time, or answers with a failure.

    Parameters
    ----------
    name : str
        What is measured; quoted in errors.
    command : sequence of str
        Starts the process, which calls `server.serve`.
    request : dict
        JSON values that prepare the server.
    timeout : float
        Seconds that an answer may take.
    hash_seed : int
        The value of PYTHONHASHSEED, which decides the order of sets of strings.
    environment : mapping of str to str or None
        Changes to the environment that the server inherits: None removes a variable, a string sets it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        request: Request,
        *,
        timeout: float,
        hash_seed: int = 0,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        self.name = name
        self.timeout = timeout
        """Seconds that an answer may take."""
        wanted = {**os.environ, **ONE_THREAD, "PYTHONHASHSEED": str(hash_seed), **(environment or {})}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        self._process = subprocess.Popen(
            command,
            env={variable: value for variable, value in wanted.items() if value is not None},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._is_ready = False
        self.can_fork = False
        """True if the server can serve several sessions; False until it is ready."""
        # The size of standard error when the last session ended.
        self._session_at = 0
        try:
            self.send(request)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The ID of the process, which is also the ID of its session."""
        return self._process.pid

    def wait_until_ready(self) -> Answer:
        """Return the answer to the request that prepared the server."""
        message = self._receive()
        self._is_ready, self.can_fork = True, bool(message["can_fork"])
        ready: Answer = message["answer"]
        return ready

    def sample(self, request: Request) -> Answer:
        """Return the answer of a session with this single request."""
        if not self._is_ready:
            self.wait_until_ready()
        answer = self.ask(request)
        self.end_session()
        return answer

    def ask(self, request: Request) -> Answer:
        """Send `request`, which opens a session or belongs to the open one, and return the answer."""
        self.send(request)
        return self.receive()

    def end_session(self) -> None:
        """End the open session and wait until its process has ended."""
        self.ask({})
        self._session_at = self._written()

    def end(self, seconds: float) -> None:
        """Let the process end by itself within `seconds`. No session may be open."""
        with contextlib.suppress(MeasurementError):  # it has ended
            self.send({})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def send(self, request: Request) -> None:
        """Send `request` without waiting for the answer."""
        if self._process.stdin is None:
            raise RuntimeError("the process was started without pipes")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self) -> Answer:
        """Return the answer to the last request."""
        answer: Answer = self._receive()["answer"]
        return answer

    def _receive(self) -> Answer:
        if self._process.stdout is None:
            raise RuntimeError("the process was started without pipes")
        if not select.select([self._process.stdout], [], [], self.timeout)[0]:
            raise self._error(f"gave no answer for {self.timeout:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        message: Answer = json.loads(line)
        used = Instruments.from_json(message["instruments"]) if "instruments" in message else "another commit"
        if used != current_instruments():
            raise MeasurementError(
                f"{self.name} was measured with the instruments {used}, not with {current_instruments()}"
            )
        if "failure" in message:
            failure = Failure.from_json(message["failure"])
            reason = failure.message if failure.is_input else f"{failure.kind}: {failure.message}"
            self._session_at = self._written()
            text = f"{self.name} cannot be measured: {reason}"
            raise MeasurementError(text, failure.traceback, failure.is_input, reason)
        if "ended" in message:
            raise self._error(_describe_exit(message["ended"]))
        return message

    def close(self) -> None:
        """Kill the process and all processes that it has started."""
        # The whole session is killed, since a process that hangs may be a child of the server.
        with contextlib.suppress(ProcessLookupError):  # all of its processes have ended
            os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ended(self) -> MeasurementError:
        code = self._process.wait()
        if code == 0 and self._is_ready and not self.can_fork:
            return MeasurementError(f"the process of {self.name} has threads after its imports: it serves one session")
        return self._error(_describe_exit(code))

    def _written(self) -> int:
        """Return how many bytes the process has written to standard error."""
        return os.fstat(self._errors.fileno()).st_size

    def _error(self, event: str) -> MeasurementError:
        """Return an error that says what happened (`event`), and quotes the last line that the session wrote."""
        errors = self._errors.fileno()
        # Both processes share the position in the file, so reading must not move it.
        start = max(self._session_at, self._written() - TAIL_NBYTES)
        tail = os.pread(errors, TAIL_NBYTES, start).decode(errors="replace").strip()
        last = f": {tail.splitlines()[-1]}" if tail else ""
        message = f"the process of {self.name} {event}{last}"
        return MeasurementError(message, f"{message}\n{tail}" if tail else "")


class FreshServers:
    """A context manager around a server that is started when needed, and replaced after an error.

    A server that failed may be in any state, and one that was interrupted may answer late. A server that cannot fork is
    replaced after each sample.

    Parameters
    ----------
    start : callable
        Returns a new server.
    """

    def __init__(self, start: Callable[[], Server]) -> None:
        self._start = start
        self._server: Server | None = None
        self.can_fork = False
        """True if the last server could serve several sessions."""

    def renew(self) -> None:
        """Start another server, and wait until it is ready."""
        self.close()
        with self._ready():
            pass

    def sample(self, name: str, request: Request, timeout: float | None = None) -> Answer:
        """Return the answer of a session with this single request.

        Parameters
        ----------
        name : str
            What is measured, for errors.
        request : dict
            The request.
        timeout : float, optional
            Seconds that the answer may take; by default those of the server.
        """
        with self._ready() as server:
            server.name = name
            if timeout is not None:
                server.timeout = timeout
            answer = server.sample(request)
        self.can_fork = server.can_fork
        if not self.can_fork:
            server.end(ENDING_SECONDS)
            self.close()
        return answer

    def close(self) -> None:
        """End the server, if there is one."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    @contextlib.contextmanager
    def _ready(self) -> Iterator[Server]:
        try:
            if self._server is None:
                self._server = self._start()
                self._server.wait_until_ready()
            yield self._server
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _describe_exit(code: int) -> str:
    if code < 0:
        reason = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"was killed by signal {-code}{reason}"
    return f"ended with exit code {code}"
