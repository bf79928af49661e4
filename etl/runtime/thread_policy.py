"""How many threads compute, and how many load."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from etl.runtime.audit import Audit
from etl.runtime.cpus import available_cpus
from etl.whole_number import whole_number

if TYPE_CHECKING:
    from typing_extensions import Self

# A product of square matrices of this side, for so long, shows how many CPUs it takes.
PROBE_SIDE = 512
PROBE_SECONDS = 0.05
# So many CPUs more than threads: something was not limited.
CPUS_TOLERANCE = 0.5

# The policies in force in this process, the last entered at the end.
_in_force: list[ThreadPolicy] = []


def compute_threads_in_force() -> int:
    """The compute threads of the policy in force; 0 where there is none."""
    return _in_force[-1].compute if _in_force else 0


def loader_threads_by_default() -> int:
    """How many threads load where nobody says: those of the policy in force; otherwise as many as there are CPUs for
    this process, less those that it gives to compute, and at least 1.
    """
    loaders = _in_force[-1].loaders if _in_force else None
    return loaders or max(1, available_cpus() - compute_threads_in_force())


class ThreadPolicy:
    """A context manager: `compute` threads for BLAS, OpenMP, torch's operations and OpenCV, restored on leaving; and
    `loaders` threads for asynchronous iterators that are not told how many.

    None for `compute` is as many as there are CPUs for this process, by its affinity and its control group, less
    `loaders`, and at least 1. torch and OpenCV are set only where they are loaded already. Raises `ValueError` for
    fewer than 1, `RuntimeError` when entered twice.
    """

    def __init__(self, compute: int | None = None, loaders: int | None = None) -> None:
        self.loaders = None if loaders is None else whole_number("loader threads", loaders, least=1)
        if compute is None:
            compute = max(1, available_cpus() - (self.loaders or 0))
        self.compute = whole_number("compute threads", compute, least=1)
        self._entered: ExitStack | None = None

    def __enter__(self) -> Self:
        if self._entered is not None:
            raise RuntimeError("this ThreadPolicy is in force already")
        with ExitStack() as stack:
            torch, cv2 = sys.modules.get("torch"), sys.modules.get("cv2")
            if torch is not None:
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(self.compute)
            # Before cv2, whose pool may be OpenMP's: leaving goes the other way.
            stack.callback(threadpool_limits(limits=self.compute).restore_original_limits)
            if cv2 is not None:
                stack.callback(cv2.setNumThreads, cv2.getNumThreads())
                cv2.setNumThreads(self.compute)
            _in_force.append(self)
            stack.callback(_in_force.remove, self)
            self._entered = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.close()

    def audit(self) -> Audit:
        """The threads of every pool as read back, and how many CPUs a product of matrices takes; only while it is in
        force, otherwise `RuntimeError`. Computes for 50 ms.
        """
        if self._entered is None:
            raise RuntimeError("this ThreadPolicy is not in force")
        pools = pool_threads()
        used = _cpus_of_product()
        available = available_cpus()
        # Fewer CPUs than threads may be the doing of another process.
        is_inert = set(pools.values()) != {self.compute} or used > self.compute + CPUS_TOLERANCE
        effect = f"a product of {PROBE_SIDE} x {PROBE_SIDE} takes {used:.1f} CPUs of {available}"
        if self.compute > available:
            effect += f", fewer than {self.compute} threads"
        in_force = ", ".join(f"{name} {count}" for name, count in pools.items())
        return Audit("threads", str(self.compute), in_force, effect, is_inert)


def pool_threads() -> dict[str, int]:
    """The threads of every pool that computes in this process: those of BLAS and OpenMP by library and file name,
    torch's and OpenCV's.
    """
    found = {
        f"{pool['internal_api']} ({pool['filepath'].rpartition('/')[2]})": pool["num_threads"]
        for pool in threadpool_info()
    }
    torch, cv2 = sys.modules.get("torch"), sys.modules.get("cv2")
    if torch is not None:
        found["torch"] = torch.get_num_threads()
    if cv2 is not None:
        found["opencv"] = cv2.getNumThreads()
    return found


def _cpus_of_product() -> float:
    """CPU seconds a second of wall time."""
    matrix = np.ones((PROBE_SIDE, PROBE_SIDE), np.float32)
    _ = matrix @ matrix
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < PROBE_SECONDS:
        _ = matrix @ matrix
    return (time.process_time() - cpu) / (time.perf_counter() - wall)
