"""A process that has imported everything and done nothing, from which fresh ones are forked for measuring."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from benchmarks.workload import COMPUTE_THREADS


def start_server(
    module: str, errors: IO[bytes], hash_seed: int = 0, packages: Path | None = None, before: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """A process, in a session of its own, that runs `main` of a module of this folder, through alone.py, against the
    installed packages, or those in the folder `packages`; its standard error goes to `errors`.
    `before` goes before the command.
    """
    # Before libraries start their thread pools: a server with threads could not be forked.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(COMPUTE_THREADS))
    environment = {**os.environ, **threads, "PYTHONHASHSEED": str(hash_seed)}
    if packages is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [*before, sys.executable, str(Path(__file__).with_name("alone.py")), module],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
    )


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
