"""A turn, in the process that takes it: an arm works for milliseconds, and the time without the CPU is not counted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .same_work import DoneWork
from .values import JsonValues

# `seconds_of` reads twice how long the thread has waited. Both readings together usually take a tenth of this.
MAX_READING_SECONDS = 0.0005
MAX_TRIES = 20


@dataclass(frozen=True)
class OpenedArm(JsonValues):
    """The answer of a session of an arm, before its turns.

    Attributes
    ----------
    seconds : mapping of str to float
        Seconds of an epoch, by metric.
    memory : int
        Bytes of memory at the peak, above those of the process before; 0 if it was not looked at.
    """

    work: DoneWork
    seconds: Mapping[str, float]
    memory: int = 0


def seconds_of(run: Callable[[], object], is_one_thread: bool) -> float:
    """Return the seconds that `run` takes, without the time in which another thread or process had the CPU.

    If `run` works with several threads, the time is not reduced, since the CPU may have been used by one of them. `run`
    is called again if the reading of the waiting time was itself interrupted; it is a `RuntimeError` if it always is.
    """
    for _ in range(MAX_TRIES):
        started = time.perf_counter()
        waited = _waited_seconds()
        began = time.perf_counter()
        run()
        ended = time.perf_counter()
        waited = _waited_seconds() - waited
        outside = began - started + time.perf_counter() - ended
        wall = ended - began
        if not is_one_thread:
            return wall
        # A wait during a reading is included in `waited` but not in `wall`.
        if outside < MAX_READING_SECONDS and waited < wall:
            return wall - waited
    raise RuntimeError(
        f"reading /proc/thread-self/schedstat was interrupted, or took more than {MAX_READING_SECONDS * 1e3:g} ms, "
        f"{MAX_TRIES} times in a row, so the time without the CPU is unknown: end other programs, and measure again"
    )


def settle_on(cpus: Sequence[int]) -> None:
    """Move this thread to the first of `cpus`, and then allow it on all of them.

    Otherwise the system may leave one of the arms, for seconds, on the same CPU as another busy process.
    """
    os.sched_setaffinity(0, cpus[:1])
    os.sched_setaffinity(0, cpus)


def _waited_seconds() -> float:
    """Return how long this thread has been ready to run without a CPU, in seconds."""
    return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) * 1e-9
