"""A fleet: one server for each process of a measurement, which are started, asked and ended together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import psutil

from .processes import ENDING_SECONDS, MeasurementError, NoAnswerError, Server
from .server import Answer, Request

if TYPE_CHECKING:
    from typing import Self

Result = TypeVar("Result")
# After one has failed, those that fail for their own reasons may say so for this long.
FAILING_SECONDS = 1.0
# Where a process waits for others: in a meeting, or in a step while torch exchanges gradients.
WAITING_PLACES = (
    "/measuring/meeting.py",
    "/torch/autograd/graph.py",
    "/torch/distributed/",
    "/torch/nn/parallel/distributed.py",
    "/torch/cuda/streams.py",
)
# Processes that start anew for each request begin to answer, and give up, at different times.
SKEW_SECONDS = 30.0


class Fleet:
    """A context manager around servers that are started when needed. If one fails, all are replaced.

    A server that failed may be in any state, and one that was interrupted may answer late. A server that cannot fork is
    replaced after each sample. Each time that the context is entered, other servers are started.
    A `timeout` is the seconds that an answer may take, by default those of the server.

    Parameters
    ----------
    start : callable
        Returns a new server, called with its number.

    Attributes
    ----------
    can_fork : bool
        True if the first server could serve several sessions when it last answered; the others import the same.
    start_seconds : float
        Seconds until the last servers were ready.
    """

    def __init__(self, start: Callable[[int], Server], count: int = 1) -> None:
        self._start = start
        self._servers: list[Server | None] = [None] * count
        self._began = 0.0
        self.can_fork = False
        self.start_seconds = 0.0
        # The kernel kills a server when the thread that has started it ends, so these live as long as the servers.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="servers") if count > 1 else None

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the running servers have for themselves alone."""
        total = 0
        for server in filter(None, self._servers):
            with suppress(psutil.NoSuchProcess):  # it has ended
                total += psutil.Process(server.pid).memory_full_info().uss
        return total

    def begin(self) -> None:
        """Start the servers that do not run, without waiting until they are ready."""
        self._each(self._started)

    def wait_until_ready(self) -> None:
        """Start the servers that do not run, and wait until all are ready."""
        self._each(self._ready)

    def sample(self, name: str, request: Request, timeout: float | None = None) -> Answer:
        """Return the answer of a session of the first server alone, with this single request."""
        return self._all([partial(self._sample, 0, name, request, timeout)])[0]

    def sample_all(self, name: str, requests: Sequence[Request], timeout: float | None = None) -> list[Answer]:
        """Return the answers of all servers, each to its own request.

        Raises
        ------
        MeasurementError
            If one fails. The first failure is raised, with its rank; the others are killed, since they may wait for it.
        """
        return self._all([partial(self._sample, each, name, one, timeout) for each, one in enumerate(requests)])

    @contextmanager
    def session(
        self, request: Request, name: str | None = None, timeout: float | None = None
    ) -> Iterator[tuple[Answer, Callable[[Request], Answer]]]:
        """Open a session of the first server; yield its answer, and a function that asks the session further requests.

        If anything is raised in this context, that server is ended: the session may be in the middle of an answer.

        Parameters
        ----------
        name : str, optional
            Name of what is measured, for errors; by default that of the server.
        """
        self.wait_until_ready()
        server = self._started(0)
        server.name, server.timeout = name or server.name, timeout or server.timeout
        try:
            yield server.ask(request), server.ask
            server.end_session()
        except BaseException:
            self.end_servers()
            raise
        if not server.can_fork:
            server.end(ENDING_SECONDS)
            self._end(0)

    def end_servers(self) -> None:
        """End all servers. The next sample starts others."""
        for number in range(len(self._servers)):
            self._end(number)

    def close(self) -> None:
        """End all servers, and the threads that wait for them."""
        self.end_servers()
        if self._threads is not None:
            self._threads.shutdown()

    def __enter__(self) -> Self:
        self.end_servers()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_servers()

    def _started(self, number: int) -> Server:
        server = self._servers[number]
        if server is None:
            if not any(self._servers):
                self._began = time.monotonic()
            server = self._servers[number] = self._start(number)
        return server

    def _ready(self, number: int) -> Server:
        server = self._started(number)
        if not server.is_ready:
            server.wait_until_ready()
            self.start_seconds = time.monotonic() - self._began
        return server

    def _sample(self, number: int, name: str, request: Request, timeout: float | None) -> Answer:
        server = self._ready(number)
        server.name = name
        if timeout is not None:
            server.timeout = timeout
        answer = server.sample(request)
        if number == 0:
            self.can_fork = server.can_fork
        if not server.can_fork:
            server.end(ENDING_SECONDS)
            self._end(number)
        return answer

    def _end(self, number: int) -> None:
        server, self._servers[number] = self._servers[number], None
        if server is not None:
            server.close()

    def _each(self, call: Callable[[int], object]) -> None:
        self._all([partial(call, number) for number in range(len(self._servers))])

    def _all(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Return the results of `calls`, one for each of the first servers, which are made at the same time."""
        if self._threads is None:
            try:
                return [each() for each in calls]
            except BaseException:
                self.end_servers()
                raise
        waiting: list[Future[Result]] = [self._threads.submit(each) for each in calls]
        try:
            wait(waiting, return_when=FIRST_EXCEPTION)
            if all(each.done() and each.exception() is None for each in waiting):
                return [each.result() for each in waiting]
            wait(waiting, FAILING_SECONDS)
            if all(map(_waits, _failures(waiting).values())):
                wait(waiting, SKEW_SECONDS)
            failures = _failures(waiting)
        finally:
            if any(not each.done() or each.exception() is not None for each in waiting):
                while not all(each.done() for each in waiting):
                    for server in self._servers:
                        if server is not None:
                            server.kill()  # a thread that waits for its answer gets an error
                    wait(waiting, FAILING_SECONDS)
                self.end_servers()
        number, error = min(failures.items(), key=lambda each: (_waits(each[1]), _began(each[1])))
        raise _of_rank(error, number, len(self._servers)) if len(calls) > 1 else error


def _failures(waiting: Sequence[Future[Result]]) -> dict[int, BaseException]:
    """Return the exceptions so far, by number of the server."""
    return {
        number: error for number, each in enumerate(waiting) if each.done() and (error := each.exception()) is not None
    }


def _began(error: BaseException) -> float:
    """Return when a failure began: that of a process that has ended without a word comes before all that it caused."""
    return error.moment if isinstance(error, MeasurementError) else 0.0


def _waits(error: BaseException) -> bool:
    """Return True if the stack of a process that did not answer shows that it was waiting for the others."""
    return isinstance(error, NoAnswerError) and any(place in error.text for place in WAITING_PLACES)


def _of_rank(error: BaseException, number: int, count: int) -> BaseException:
    if not isinstance(error, MeasurementError):
        return error
    where = f"rank {number} of {count}: "
    return type(error)(f"{where}{error}", f"{where}{error.text}", error.is_input, f"{where}{error.reason}")
