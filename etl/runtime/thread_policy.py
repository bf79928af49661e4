"""A policy for threads: the numbers of compute threads and of loader threads."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from etl.arguments import whole_number
from etl.runtime.audit import Audit
from etl.runtime.policy import Policy, policies_in_force
from etl.runtime.resources import available_cpus, rank_cores, rank_cpus

# The audit multiplies square matrices of this side for this time, and measures how many CPUs that takes.
PROBE_SIDE = 512
PROBE_SECONDS = 0.05
# If a product takes more CPUs than there are threads, by this margin, some pool was not limited.
CPUS_TOLERANCE = 0.5
# Names in `pool_threads` of the pools that threadpoolctl does not find.
TORCH, OPENCV = "torch", "opencv"


def default_loader_threads() -> int:
    """Return the number of loader threads if the user gives none.

    It is the `loaders` of the policy in force. If there is no policy, or it does not say, it is the number of CPUs that
    this process may use, or its share of them as a rank, less the compute threads of the policy, and at least 1.
    """
    policies = policies_in_force(ThreadPolicy)
    if not policies:
        return rank_cpus()
    return policies[-1].loaders or max(1, rank_cpus() - policies[-1].compute)


class ThreadPolicy(Policy):
    """A context manager that sets the number of compute threads and of loader threads, and restores the former ones.

    Parameters
    ----------
    compute : int, optional
        Threads for BLAS, OpenMP and torch's operations, and the most that OpenCV keeps. By default one for each
        physical core that this process may use, by its affinity and its control group, under torchrun its share of
        them, since two threads that compute on one core wait for each other; but no more than the CPUs that `loaders`
        leave, and at least 1.
    loaders : int, optional
        Threads of each `AsyncIterator` whose `threads` is not given. By default the CPUs that `compute` leaves.

    Raises
    ------
    ValueError
        If a number is less than 1.
    RuntimeError
        On entering, if the policy is in force already.

    Notes
    -----
    Only libraries that are already loaded are limited. OpenCV keeps fewer threads than `compute` if it was set to fewer
    before: `decoder="turbo"` sets one, since loader threads resize one image each.

    Examples
    --------
    >>> with etl.runtime.ThreadPolicy(1):
    ...     torch.get_num_threads()
    1
    """

    def __init__(self, compute: int | None = None, loaders: int | None = None) -> None:
        self.loaders = None if loaders is None else whole_number("loader threads", loaders, least=1)
        if compute is None:
            cpus = rank_cpus()
            compute = max(1, min(rank_cores() or cpus, cpus - (self.loaders or 0)))
        self.compute = whole_number("compute threads", compute, least=1)
        # The pools that were limited on entering.
        self._set: set[str] = set()

    def _put_in_force(self, stack: ExitStack) -> None:
        torch, cv2 = sys.modules.get("torch"), sys.modules.get("cv2")
        if torch is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(self.compute)
        # Before cv2, whose pool may be OpenMP's: they are restored in reverse order.
        importlib.import_module("numpy")  # whose pool is limited, too; `etl run` imports this file without it
        stack.callback(_pools().threadpool_limits(limits=self.compute).restore_original_limits)
        if cv2 is not None:
            stack.callback(cv2.setNumThreads, cv2.getNumThreads())
            cv2.setNumThreads(min(self.compute, cv2.getNumThreads()))
        self._set = set(pool_threads()) - {OPENCV}

    def audit(self) -> Audit:
        """Report the threads of every pool and the CPUs that a matrix product takes, in a tenth of a second.

        Raises `RuntimeError` outside of the `with` block.
        """
        self._require_in_force()
        pools = pool_threads()
        used = _cpus_of_product()
        available = available_cpus()
        effect = f"a product of {PROBE_SIDE} x {PROBE_SIDE} takes {used:.1f} CPUs of {available}"
        if self.compute > available:
            effect += f", fewer than {self.compute} threads"
        in_force = ", ".join(f"{name} {count}" for name, count in pools.items())
        return Audit("threads", str(self.compute), in_force, effect, self._alarm(pools, used))

    def _alarm(self, pools: Mapping[str, int], used: float) -> str:
        """Return an alarm if one of `pools` has another number of threads, or a matrix product `used` more CPUs.

        Pools that were loaded after entering may have fewer threads, but not more.
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
        # Another process may be the reason if it takes fewer CPUs than threads.
        if not found and used > self.compute + CPUS_TOLERANCE:
            found.append(
                f"{asked} and every library says so, but a product of numpy's takes {used:.1f} CPUs: it computes with "
                "threads that cannot be set from here. Start Python with OMP_NUM_THREADS, OPENBLAS_NUM_THREADS and "
                f"MKL_NUM_THREADS set to {self.compute}."
            )
        return " ".join(found)


def pool_threads() -> dict[str, int]:
    """Return the threads of every compute pool in this process.

    Keys are "torch", "opencv", and the library and file name of each pool of BLAS and OpenMP.
    """
    found = {
        f"{pool['internal_api']} ({pool['filepath'].rpartition('/')[2]})": pool["num_threads"]
        for pool in _pools().threadpool_info()
    }
    torch, cv2 = sys.modules.get("torch"), sys.modules.get("cv2")
    if torch is not None:
        found[TORCH] = torch.get_num_threads()
    if cv2 is not None:
        found[OPENCV] = cv2.getNumThreads()
    return found


def _pools() -> Any:
    """Return threadpoolctl, which the environment of another library's loader may lack: it needs no policy."""
    return importlib.import_module("threadpoolctl")


def _listed(pools: Mapping[str, int]) -> str:
    return ", ".join(f"{name} has {count}" for name, count in pools.items())


def _cpus_of_product() -> float:
    """Return how many CPUs a matrix product uses, less those that other threads of this process use."""
    import numpy as np

    others = _cpus_during(lambda: time.sleep(PROBE_SECONDS))
    matrix = np.ones((PROBE_SIDE, PROBE_SIDE), np.float32)
    _ = matrix @ matrix
    return max(0.0, _cpus_during(lambda: matrix @ matrix) - others)


def _cpus_during(step: Callable[[], object]) -> float:
    """Return the CPU seconds that this process takes for each second in which `step` is repeated."""
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < PROBE_SECONDS:
        step()
    return (time.process_time() - cpu) / (time.perf_counter() - wall)
