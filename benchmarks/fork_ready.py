"""A process that has imported everything and done nothing, from which fresh ones are forked for measuring."""

from __future__ import annotations

import os


def make_fork_ready() -> None:
    """Import torch, numba and all that measuring needs, which takes longer than measuring does.

    Raises `RuntimeError` where a thread runs afterwards: a forked child would inherit its locks.
    """
    # First, because it uses a thread, which the system may show for a moment after it has ended.
    _load_numba()
    import torch._dynamo  # noqa: F401 - torch.optim imports it when the first optimizer is made

    import etl  # noqa: F401 - imported before forking, as are torch and all that measuring needs
    from benchmarks import measure  # noqa: F401

    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    if threads != 1:
        raise RuntimeError(f"{threads} threads run after the imports; a forked child would inherit their locks")


def _load_numba() -> None:
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
