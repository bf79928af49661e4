"""How many threads compute, and how many load."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from etl.arguments import whole_number
from etl.runtime.audit import Audit
from etl.runtime.cpus import available_cpus

if TYPE_CHECKING:
    from typing_extensions import Self

# A product of square matrices of this side, for so long, shows how many CPUs it takes.
PROBE_SIDE = 512
PROBE_SECONDS = 0.05
# So many CPUs more than threads: something was not limited.
CPUS_TOLERANCE = 0.5
# How `pool_threads` calls the pools that are not found by threadpoolctl.
TORCH, OPENCV = "torch", "opencv"

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
    """A context manager: `compute` threads for BLAS, OpenMP and torch's operations, at most as many for OpenCV, all
    restored on leaving; and `loaders` threads for asynchronous iterators that are not told how many.

    None for `compute` is as many as there are CPUs for this process, by its affinity and its control group, less
    `loaders`, and at least 1. Only libraries that are loaded already are set. OpenCV keeps fewer threads than
    `compute` if it has been given fewer: `decoder="turbo"` gives it one, since its own threads resize one image each.
    Raises `ValueError` for fewer than 1, `RuntimeError` when entered twice.
    """

    def __init__(self, compute: int | None = None, loaders: int | None = None) -> None:
        self.loaders = None if loaders is None else whole_number("loader threads", loaders, least=1)
        if compute is None:
            compute = max(1, available_cpus() - (self.loaders or 0))
        self.compute = whole_number("compute threads", compute, least=1)
        self._entered: ExitStack | None = None
        # The pools that entering has set.
        self._set: set[str] = set()

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
                cv2.setNumThreads(min(self.compute, cv2.getNumThreads()))
            self._set = set(pool_threads()) - {OPENCV}
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
        force, otherwise `RuntimeError`. Takes a tenth of a second.
        """
        if self._entered is None:
            raise RuntimeError("this ThreadPolicy is not in force")
        pools = pool_threads()
        used = _cpus_of_product()
        available = available_cpus()
        effect = f"a product of {PROBE_SIDE} x {PROBE_SIDE} takes {used:.1f} CPUs of {available}"
        if self.compute > available:
            effect += f", fewer than {self.compute} threads"
        in_force = ", ".join(f"{name} {count}" for name, count in pools.items())
        return Audit("threads", str(self.compute), in_force, effect, self._alarm(pools, used))

    def _alarm(self, pools: Mapping[str, int], used: float) -> str:
        """Say which of `pools` has another number of threads, or that a product of matrices `used` more CPUs.

        Pools that were loaded since entering may have fewer threads: none computes with more than were asked for.
        """
        changed = {
            name: count for name, count in pools.items() if name in {*self._set, TORCH} and count != self.compute
        }
        late = {name: count for name, count in pools.items() if name not in changed and count > self.compute}
        asked = f"compute threads were to be {self.compute}"
        found = []
        if changed:
            found.append(
                f"{asked}, and {_listed(changed)} now. Something in this process has set that since, such as a call "
                "of torch.set_num_threads: remove it, or ask for its number."
            )
        if late:
            found.append(
                f"{asked}, and {_listed(late)}, loaded or set later. Import that library before, or give it "
                f"{self.compute} yourself."
            )
        # Fewer CPUs than threads may be the doing of another process.
        if not found and used > self.compute + CPUS_TOLERANCE:
            found.append(
                f"{asked} and every library says so, but a product of numpy's takes {used:.1f} CPUs: it computes with "
                "threads that cannot be set from here. Start Python with OMP_NUM_THREADS, OPENBLAS_NUM_THREADS and "
                f"MKL_NUM_THREADS set to {self.compute}."
            )
        return " ".join(found)


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
        found[TORCH] = torch.get_num_threads()
    if cv2 is not None:
        found[OPENCV] = cv2.getNumThreads()
    return found


def _listed(pools: Mapping[str, int]) -> str:
    return ", ".join(f"{name} has {count}" for name, count in pools.items())


def _cpus_of_product() -> float:
    """Return how many CPUs a product of matrices takes, without those that other threads of this process take."""
    others = _cpus_during(lambda: time.sleep(PROBE_SECONDS))
    matrix = np.ones((PROBE_SIDE, PROBE_SIDE), np.float32)
    _ = matrix @ matrix
    return max(0.0, _cpus_during(lambda: matrix @ matrix) - others)


def _cpus_during(step: Callable[[], object]) -> float:
    """Return the CPU seconds of this process for each second in which `step` is repeated."""
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < PROBE_SECONDS:
        step()
    return (time.process_time() - cpu) / (time.perf_counter() - wall)
