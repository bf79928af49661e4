"""A process that has imported everything and done nothing, from which fresh ones are forked for measuring."""

from __future__ import annotations

import os
import time

# How long the threads of the imports may take to end.
ENDING_SECONDS = 1.0


def make_fork_ready() -> None:
    """Import torch, numba and all that measuring needs, which takes longer than measuring does. Raises as
    `check_no_threads` does.
    """
    load_kernels()
    import torch._dynamo  # noqa: F401 - torch.optim imports it when the first optimizer is made

    import etl  # noqa: F401 - imported before forking, as are torch and all that measuring needs
    from benchmarks import measure  # noqa: F401

    check_no_threads()


def check_no_threads() -> None:
    """Raise `RuntimeError` where another thread runs: a forked child would inherit its locks."""
    # The system may show a thread for a moment after it has ended.
    until = time.monotonic() + ENDING_SECONDS
    while (threads := len(os.listdir("/proc/self/task"))) > 1:  # noqa: PTH208
        if time.monotonic() > until:
            raise RuntimeError(f"{threads} threads run after the imports; a forked child would inherit their locks")
        time.sleep(0.001)


def load_kernels() -> None:
    """The loops that etl compiles, where numba is installed: half a second, most of it before the first function."""
    import etl

    if hasattr(etl, "load_kernels"):
        etl.load_kernels()
        return
    try:
        import numba
    except ImportError:
        return
    numba.njit(nogil=True)(lambda: 0)()
