"""The client side of fresh processes: starts a server (see `server.py`), and sends it requests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, cast

import psutil

from .instruments import Instruments, current_instruments
from .places import place_in
from .process_tree import MARK, is_cleaner, marked_processes
from .server import STACK_SIGNAL, Answer, Failure, Request

if TYPE_CHECKING:
    from typing import Self

# An error quotes at most this much of what the server wrote to standard error. The stack of a crash names all extension
# modules, which takes several thousand bytes.
TAIL_NBYTES = 1 << 16
# The beginning of a stack, as `faulthandler` writes it.
STACK = re.compile(r"^(Fatal Python error: |Stack \(most recent call first\):)", re.MULTILINE)
# Set before libraries start their thread pools, because a server with threads cannot fork. The forked process then sets
# its number of compute threads.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# A server that serves a single session has this long to end in order, such as to remove its shared memory.
ENDING_SECONDS = 10.0
# A process that still holds the pipe does not keep the client from noticing after this time that the server has ended.
LOOK_SECONDS = 0.5
# Time to write a stack, to be killed, and to remove the shared memory of killed processes.
STACK_SECONDS, KILL_SECONDS, CLEANING_SECONDS = 3.0, 5.0, 2.0
SIGNALS: Mapping[int, str] = {
    signal.SIGKILL: " (out of memory?)",
    signal.SIGSEGV: " (segmentation fault)",
    signal.SIGBUS: " (no space left in /dev/shm?)",
}


class MeasurementError(RuntimeError):
    """An error that made a measurement impossible.

    Parameters
    ----------
    text : str
        All details, such as a traceback; by default the message.
    is_input : bool
        True if the user's input is wrong.
    reason : str
        The cause alone, without the name of what was measured; by default the message.
    moment : float
        When it was raised in its process, in seconds of the clock that all processes of a machine share. 0 if the
        process has ended or does not answer.
    """

    def __init__(
        self, message: str, text: str = "", is_input: bool = False, reason: str = "", moment: float = 0.0
    ) -> None:
        super().__init__(message)
        self.text = text or message
        self.is_input = is_input
        self.reason = reason or message
        self.moment = moment


class NoAnswerError(MeasurementError):
    """A process did not answer in time."""


class Server:
    """A context manager around a server process, in a session of its own.

    The process starts at once, and prepares itself while the caller continues. All methods raise `MeasurementError` if
    the process has ended, does not answer in time, or answers with a failure.

    Parameters
    ----------
    command : sequence of str
        Starts the process, which calls `server.serve`.
    timeout : float
        Seconds that an answer may take.
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
        self._mark = secrets.token_hex(8)
        wanted = {
            **os.environ,
            **ONE_THREAD,
            "PYTHONHASHSEED": str(hash_seed),
            **(environment or {}),
            MARK: self._mark,
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        try:
            self._process = subprocess.Popen(
                command,
                env={variable: value for variable, value in wanted.items() if value is not None},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            raise MeasurementError(f"{command[0]} cannot be started: {error.strerror}") from error
        self._requests, self._answers = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)
        self.is_ready = False
        """True once it has answered the request that prepared it."""
        self.can_fork = False
        """True if the server can serve several sessions; False until it is ready."""
        # The size of standard error when the last session ended.
        self._session_at = 0
        self._has_served = False
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
        self.is_ready, self.can_fork = True, bool(message["can_fork"])
        ready: Answer = message["answer"]
        return ready

    def sample(self, request: Request) -> Answer:
        """Return the answer of a session with this single request."""
        if not self.is_ready:
            self.wait_until_ready()
        answer = self.ask(request)
        self.end_session()
        return answer

    def ask(self, request: Request) -> Answer:
        """Send `request`, which opens a session or belongs to the open one, and return the answer."""
        self.send(request)
        answer: Answer = self._receive()["answer"]
        return answer

    def end_session(self) -> None:
        """End the open session and wait until its process has ended."""
        self.ask({})
        self._session_at = self._written()
        self._has_served = True

    def end(self, seconds: float) -> None:
        """Let the process end by itself within `seconds`. No session may be open."""
        with contextlib.suppress(MeasurementError):  # it has ended
            self.send({})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def send(self, request: Request) -> None:
        """Send `request` without waiting for the answer."""
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _receive(self) -> Answer:
        until = time.monotonic() + self.timeout
        while not _is_readable(self._answers, min(LOOK_SECONDS, max(0.0, until - time.monotonic()))):
            if self._process.poll() is not None and not _is_readable(self._answers, 0.0):
                raise self._ended()
            if time.monotonic() >= until:
                self._write_stack()
                raise self._error(f"gave no answer for {self.timeout:g} s", NoAnswerError)
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            raise self._ended()
        try:
            message: Answer = json.loads(line)
        except json.JSONDecodeError:  # a session was killed while it answered: that it has ended follows on the half
            _, start, rest = line.rpartition(b'{"instruments"')
            message = json.loads(start + rest)
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
            raise MeasurementError(text, failure.traceback, failure.is_input, reason, failure.moment)
        if "ended" in message:
            raise self._error(_describe_exit(message["ended"]))
        return message

    def close(self) -> None:
        """Kill the process and all processes that it has started, in whatever session or process group they are."""
        self.kill()
        for pipe in (self._requests, self._answers):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()
        self._errors.close()

    def kill(self) -> None:
        """Kill all processes; those that remove what the others leave in shared memory last, if they do not end.

        A thread that waits for an answer gets an error.
        """
        until = time.monotonic() + KILL_SECONDS
        while found := [each for each in marked_processes(self._mark) if not is_cleaner(each)]:
            _kill_all(found)
            if time.monotonic() > until:
                break
            time.sleep(0.005)
        until = time.monotonic() + CLEANING_SECONDS
        while (left := marked_processes(self._mark)) and time.monotonic() < until:
            time.sleep(0.005)
        _kill_all(left)
        # A process may have changed its environment.
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(self.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ended(self) -> MeasurementError:
        try:
            code = self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            return self._error("closed the pipe for its answers")
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            return self._error("has ended (why is unknown, because this program ignores SIGCHLD)")
        if code == 0 and self._has_served and not self.can_fork:
            return MeasurementError(f"the process of {self.name} has threads after its imports: it serves one session")
        return self._error(_describe_exit(code))

    def _write_stack(self) -> None:
        """Let the process that does not answer write its stack to standard error."""
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            children = psutil.Process(self.pid).children() if self.can_fork else []
            before = written = self._written()
            os.kill(children[0].pid if children else self.pid, STACK_SIGNAL)
            until = time.monotonic() + STACK_SECONDS
            while time.monotonic() < until:
                time.sleep(0.2)  # it is written line by line
                if before < (now := self._written()) == written:
                    break
                written = now

    def _written(self) -> int:
        """Return how many bytes the process has written to standard error."""
        return os.fstat(self._errors.fileno()).st_size

    def _error(self, event: str, kind: type[MeasurementError] = MeasurementError) -> MeasurementError:
        """Return an error that says what happened (`event`), quotes the last line that was written, and says where."""
        errors = self._errors.fileno()
        # Both processes share the position in the file, so reading must not move it.
        start = max(self._session_at, self._written() - TAIL_NBYTES)
        tail = os.pread(errors, TAIL_NBYTES, start).decode(errors="replace").strip()
        stack = STACK.search(tail)
        said = (tail if stack is None else tail[: stack.start()]).strip()
        place = "" if stack is None else place_in(tail[stack.start() :], newest_first=True)
        last = f": {said.splitlines()[-1]}" if said else ""
        reason = f"{event}{last}{f', at {place}' if place else ''}"
        message = f"the process of {self.name} {reason}"
        return kind(message, f"{message}\n{tail}" if tail else "", reason=f"its process {reason}")


def _is_readable(pipe: IO[bytes], seconds: float) -> bool:
    """Wait until there is something to read, or for `seconds`; return whether there is."""
    poll = select.poll()  # unlike select(2), it knows descriptors from 1024 on
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(seconds * 1e3))


def _kill_all(processes: Iterable[psutil.Process]) -> None:
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def _describe_exit(code: int) -> str:
    if code < 0:
        return f"was killed by signal {-code}{SIGNALS.get(-code, '')}"
    return f"ended with exit code {code}"
