"""A process that may open few files more, for tests."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def few_descriptors(left: int) -> Iterator[None]:
    """Let this process open only `left` files more."""
    for thread in threading.enumerate():
        if thread.name == "load-numba":  # in the background; it would warn that it cannot
            thread.join()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(each.name) for each in Path("/proc/self/fd").iterdir()) + 1 + left, hard)
    )
    fillers = []
    try:
        with suppress(OSError):
            while True:
                fillers.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(left):
            os.close(fillers.pop())
        yield
    finally:
        for each in fillers:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
