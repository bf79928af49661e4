"""The client side of fresh processes: a server (see `server.py`) as the process that measures sees it."""

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

from .instruments import Instruments, instruments
from .server import Answer, Failure, Request

if TYPE_CHECKING:
    from typing_extensions import Self

# Of what a server wrote to standard error, so much is in the error that it ended with.
TAIL_NBYTES = 4000
# Before libraries start their thread pools: a server with threads could not be forked. How many compute has is set in
# the fork.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class MeasurementError(RuntimeError):
    """A measurement could not be taken.

    `text` is all that is known of it, a traceback if there is one. `is_input` says that the user's input is wrong, and
    `reason` what is wrong with it.
    """

    def __init__(self, message: str, text: str = "", is_input: bool = False, reason: str = "") -> None:
        super().__init__(message)
        self.text = text or message
        self.is_input = is_input
        self.reason = reason or message


class Server:
    """A context manager around a server process, in a session of its own.

    It is started at once, and prepares itself while the caller does something else. All methods raise
    `MeasurementError` if the process has ended, does not answer in time, or answers with a failure.

    Parameters
    ----------
    name : str
        Of what is measured; for errors.
    command : sequence of str
        Starts the process, which calls `server.serve`.
    request : dict
        JSON values; prepares the server.
    timeout : float
        Seconds that an answer may take.
    hash_seed : int
        Of the strings in the process, which decides about the order of sets and dictionaries of them.
    environment : mapping of str to str or None
        Beside that of this process; None removes a variable.
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
        self._timeout = timeout
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
        """True if it serves more than one session; False until it is ready."""
        # How much it had written to standard error when the last session ended.
        self._session_at = 0
        try:
            self.send(request)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The number of the process, which is that of its session, too."""
        return self._process.pid

    def wait_until_ready(self) -> Answer:
        """Return the answer to the request that prepared the server."""
        message = self._receive()
        self._is_ready, self.can_fork = True, bool(message["can_fork"])
        ready: Answer = message["answer"]
        return ready

    def sample(self, request: Request) -> Answer:
        """Return what a session of this one request answers."""
        if not self._is_ready:
            self.wait_until_ready()
        answer = self.ask(request)
        self.end_session()
        return answer

    def ask(self, request: Request) -> Answer:
        """Return the answer to `request`, which opens a session or is for the one that is open."""
        self.send(request)
        return self.receive()

    def end_session(self) -> None:
        """End the open session and wait until its process has."""
        self.ask({})
        self._session_at = self._written()

    def end(self, seconds: float) -> None:
        """Let the process end in order, which may take so many `seconds`, while no session is open."""
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
        """Return the answer to what was sent."""
        answer: Answer = self._receive()["answer"]
        return answer

    def _receive(self) -> Answer:
        if self._process.stdout is None:
            raise RuntimeError("the process was started without pipes")
        if not select.select([self._process.stdout], [], [], self._timeout)[0]:
            raise self._error(f"gave no answer for {self._timeout:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        message: Answer = json.loads(line)
        used = Instruments.from_json(message["instruments"]) if "instruments" in message else "another commit"
        if used != instruments():
            raise MeasurementError(f"{self.name} was measured with the instruments {used}, not with {instruments()}")
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
        """End the process and everything that it has started."""
        # The whole session: what hangs is a child of the server.
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
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
        """Return how many bytes it has written to standard error."""
        return os.fstat(self._errors.fileno()).st_size

    def _error(self, what: str) -> MeasurementError:
        """Return an error that says `what` the process did, and the last that its session wrote."""
        errors = self._errors.fileno()
        # The place of reading in an open file is that of the process's writing, too, so it must not move.
        start = max(self._session_at, self._written() - TAIL_NBYTES)
        tail = os.pread(errors, TAIL_NBYTES, start).decode(errors="replace").strip()
        last = f": {tail.splitlines()[-1]}" if tail else ""
        message = f"the process of {self.name} {what}{last}"
        return MeasurementError(message, f"{message}\n{tail}" if tail else "")


class FreshServers:
    """A context manager around a server that is started when it is needed, and replaced after an error.

    What failed may have left anything behind, and what was interrupted may answer later. A server that cannot fork is
    replaced after each sample.

    Parameters
    ----------
    start : callable
        Returns a new server.
    """

    def __init__(self, start: Callable[[], Server]) -> None:
        self._start = start
        self._server: Server | None = None

    def renew(self) -> None:
        """Start another server, and wait until it is ready."""
        self.close()
        with self._ready():
            pass

    def sample(self, name: str, request: Request) -> Answer:
        """Return what a session of this one request answers; errors are of `name`."""
        with self._ready() as server:
            server.name = name
            answer = server.sample(request)
        if not server.can_fork:
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
