"""The queue of a server: requests wait until enough of one kind are there to be answered at once, or long enough."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from presave import interrupts

# Requests wait for others for this share of the time that the model took to answer last. On two cores, with models that
# take 0.05 to 0.8 ms, this gave 0.9 to 1.2 of the answers a second without any wait; all of that time gave 0.3 to 0.6
# of them for 4 clients, which were all waiting already. What arrives while all workers are busy gathers without a wait.
WAIT_SHARE = 0.25


class QueueFullError(RuntimeError):
    """A request found no place in the queue within its timeout."""


@dataclass
class Request:
    """A request that waits for its answer.

    Attributes
    ----------
    features : tuple
        Inputs of the model. The first axis of each counts records.
    records : int
        Records in it.
    kind : hashable
        Only requests of one kind can be answered at once.
    wants_tensors : bool
        Answer with tensors, not with numpy arrays.
    answer : Future
        Gets the answer, or an error.
    arrived : float
        Time of `time.monotonic` at which it was queued.
    """

    features: tuple[Any, ...]
    records: int
    kind: Hashable
    wants_tensors: bool
    answer: Future[Any] = field(default_factory=Future)
    arrived: float = 0.0


class RequestQueue:
    """A queue of requests, grouped by kind.

    Any number of threads may add requests and take groups of them. A group is taken when it has `batch_limit` records,
    or when its oldest request has waited long enough: whichever comes first, and the oldest group first. Long enough is
    a quarter of `answer_seconds`, and at most `max_wait`.

    Parameters
    ----------
    max_wait : float
        The longest that a request waits for others, in seconds.

    Attributes
    ----------
    answer_seconds : float
        Time that the model took to answer last. Workers set it; before that, no request waits for others.
    answered : int
        Increased with every group that was answered.
    begun : dict
        The requests that each worker is answering.
    is_given_up : bool
        True once the model has been too slow to wait for, so that nothing waits for it again.
    """

    def __init__(self, batch_limit: int, queue_limit: int, max_wait: float) -> None:
        self._batch_limit = batch_limit
        self._queue_limit = queue_limit
        self._max_wait = max_wait
        self.answer_seconds = 0.0
        self.answered = 0
        self.begun: dict[int, list[Request]] = {}
        self.is_given_up = False
        # A request is queued by a single instruction, so that an interrupt leaves no half of it.
        self._groups: dict[Hashable, deque[Request]] = {}
        self._dropped: list[Request] = []
        self._is_closed = False
        # Re-entrant, because the collector may close the queue in a thread that is inside it.
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._has_room = interrupts.Wakeups()

    def __len__(self) -> int:
        return sum(map(len, list(self._groups.values())))

    def put(self, request: Request, timeout: float | None) -> None:
        """Add a request; if the queue is full, wait for a place, without a timeout for as long as it takes.

        Raises
        ------
        QueueFullError
            If there was no place in time.
        RuntimeError
            If the queue is closed, or is closed meanwhile.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self._is_closed:
                    raise closed_error()
                waiting = len(self)
                if waiting < self._queue_limit:
                    self._add(request)
                    return
                left = None if ends is None else ends - time.monotonic()
                if left is not None and left <= 0:
                    raise QueueFullError(
                        f"{waiting} requests wait already, which is the limit: ask again later, or with a longer "
                        "timeout, or raise queue_limit"
                    )
                self._has_room.waiting += 1
            self._has_room.wait(self._lock, left)

    def _add(self, request: Request) -> None:
        request.arrived = time.monotonic()
        group = self._groups.get(request.kind)
        if group is None:
            self._groups[request.kind] = deque([request])
        else:
            group.append(request)
        # Otherwise, a worker waits for more already.
        if group is None or self._count_records(request.kind) >= self._batch_limit:
            self._arrived.notify()

    def take(self) -> list[Request] | None:
        """Return the next requests to answer at once, when it is time; None once the queue is closed and empty."""
        with self._lock:
            while True:
                now = time.monotonic()
                due = [kind for kind in self._groups if self._is_due(kind, now)]
                if due:
                    return self._pop(min(due, key=self._oldest))
                if self._is_closed:
                    return None
                oldest = min(map(self._oldest, self._groups), default=None)
                self._arrived.wait(None if oldest is None else oldest + self._wait_for_others() - now)

    def _is_due(self, kind: Hashable, now: float) -> bool:
        is_full = self._count_records(kind) >= self._batch_limit
        return is_full or self._is_closed or now >= self._oldest(kind) + self._wait_for_others()

    def _count_records(self, kind: Hashable) -> int:
        return sum(each.records for each in self._groups[kind])

    def _wait_for_others(self) -> float:
        """Return the seconds that the oldest request of a group waits."""
        return min(self._max_wait, WAIT_SHARE * self.answer_seconds)

    def _oldest(self, kind: Hashable) -> float:
        return self._groups[kind][0].arrived

    def _pop(self, kind: Hashable) -> list[Request]:
        """Remove the oldest requests of a group, as many as fit into a batch and at least one; return them."""
        group = self._groups[kind]
        taken = [group.popleft()]
        records = taken[0].records
        while group and records + group[0].records <= self._batch_limit:
            taken.append(group.popleft())
            records += taken[-1].records
        if not group:
            del self._groups[kind]
        self._has_room.notify_all()
        # The thread that was waiting for the earliest deadline is leaving, so another one must wait for the next.
        if self._groups:
            self._arrived.notify()
        return taken

    def close(self, answers_waiting: bool) -> list[Request]:
        """Refuse further requests. Return those that stay unanswered: none if `answers_waiting`, now and before."""
        with self._lock:
            self._is_closed = True
            if not answers_waiting:
                self._dropped += [each for group in self._groups.values() for each in group]
                self._groups.clear()
            self._arrived.notify_all()
            self._has_room.notify_all()
        return self._dropped


def closed_error() -> RuntimeError:
    """Return the error of a request to a server that is closed."""
    return RuntimeError("the server is closed: it takes no more requests")
