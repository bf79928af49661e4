"""Several servers that answer at the same time, one for each process of a measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

from .processes import FreshServers, MeasurementError, NoAnswerError, Server
from .server import Answer, Request

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


class ServersAtOnce:
    """Servers that are started, asked and ended together. If one fails, all are replaced.

    Parameters
    ----------
    start : callable
        Returns a new server, called with its number.
    """

    def __init__(self, start: Callable[[int], Server], count: int) -> None:
        self._servers = [FreshServers(partial(start, number)) for number in range(count)]
        # The kernel kills a server when the thread that has started it ends, so these live as long as the servers.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="servers") if count > 1 else None

    @property
    def can_fork(self) -> bool:
        """True if the last first server could serve several sessions; the others import the same."""
        return self._servers[0].can_fork

    @property
    def start_seconds(self) -> float:
        """Seconds until the last servers were ready."""
        return max(each.start_seconds for each in self._servers)

    def renew(self) -> None:
        """Start other servers, and wait until they are ready."""
        self._all([each.renew for each in self._servers])

    def begin(self) -> None:
        """Start the servers that do not run, without waiting until they are ready."""
        self._all([each.begin for each in self._servers])

    def wait_until_ready(self) -> None:
        """Start the servers that do not run, and wait until all are ready."""
        self._all([each.wait_until_ready for each in self._servers])

    def sample(self, name: str, request: Request, timeout: float | None = None) -> Answer:
        """Return the answer of the first server alone.

        Parameters
        ----------
        timeout : float, optional
            Seconds that the answer may take; by default those of the server.
        """
        return self._all([lambda: self._servers[0].sample(name, request, timeout)])[0]

    def sample_all(self, name: str, requests: Sequence[Request], timeout: float | None = None) -> list[Answer]:
        """Return the answers of all servers, each to its own request.

        Parameters
        ----------
        timeout : float, optional
            Seconds that the answers may take; by default those of the servers.

        Raises
        ------
        MeasurementError
            If one fails. The first failure is raised, with its rank; the others are killed, since they may wait for it.
        """

        def ask(number: int) -> Callable[[], Answer]:
            return lambda: self._servers[number].sample(name, requests[number], timeout)

        return self._all([ask(number) for number in range(len(requests))])

    def end_servers(self) -> None:
        """End all servers. The next sample starts others."""
        for each in self._servers:
            each.close()

    def close(self) -> None:
        """End all servers, and the threads that wait for them."""
        self.end_servers()
        if self._threads is not None:
            self._threads.shutdown()

    def _all(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Return the results of `calls`, one for each of the first servers, which are made at the same time."""
        if self._threads is None:
            return [each() for each in calls]
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
            while not all(each.done() for each in waiting):
                for each in self._servers:
                    each.kill()
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
