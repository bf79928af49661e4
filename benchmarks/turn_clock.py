"""The clock of a turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

# Of how long a thread has waited, twice; usually a tenth of that.
MOST_READING_SECONDS = 0.0005


def seconds_of(run: Callable[[], object], is_one_thread: bool) -> float:
    """Seconds that `run` takes, without those in which something else had the CPU of this thread. Where it works with
    others that may have been one of them, so there they stay. `run` is called again where it was not clear.
    """
    while True:
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
        # A wait while the waits were read is in one of the two, and not in the other.
        if outside < MOST_READING_SECONDS and waited < wall:
            return wall - waited


def _waited_seconds() -> float:
    """For how long this thread has been ready to run while something else had the CPU."""
    return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) * 1e-9
