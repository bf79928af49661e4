"""The CPUs and the memory that this process may use, within the limits of its container."""

from __future__ import annotations

import math
import os
from pathlib import Path

from presave.memory import CGROUPS, OWN_GROUP, available_nbytes, own_groups, usable_nbytes, with_parents
from presave.memory import cgroup_nbytes_left as cgroup_nbytes_left

__all__ = ["affinity_of", "available_cores", "available_cpus", "available_nbytes", "cgroup_quota", "usable_nbytes"]

CPU_TOPOLOGY = Path("/sys/devices/system/cpu")


def available_cpus() -> int:
    """Return how many CPUs this process may use, at least 1.

    This is the smaller of its affinity (`taskset`) and the quota of its control group (`cpu.max`, or in version 1
    `cpu.cfs_quota_us`), rounded up.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def available_cores(topology: Path = CPU_TOPOLOGY) -> int | None:
    """Return how many physical cores this process may use; None if the system does not say.

    Logical CPUs that share a core (SMT, hyper-threading) count once. A quota of the control group limits the number.

    Parameters
    ----------
    topology : Path
        Folder with the topology of each CPU.
    """
    try:
        cores = {
            (topology / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
            for cpu in os.sched_getaffinity(0)
        }
    except (OSError, AttributeError):
        return None
    return min(len(cores), available_cpus())


def affinity_of(count: int) -> list[int]:
    """Return the ids of the first `count` CPUs that this process may run on, or of all if there are fewer."""
    return sorted(os.sched_getaffinity(0))[:count]


def cgroup_quota(root_2: Path = CGROUPS, root_1: Path = CGROUPS / "cpu", own: Path = OWN_GROUP) -> float | None:
    """Return the CPUs that the control groups around this process allow; None if none of them sets a limit.

    Parameters
    ----------
    root_2 : Path
        Root of the control groups of version 2.
    root_1 : Path
        Root of version 1's controller of CPUs.
    own : Path
        File that lists the groups of this process.
    """
    group_2, group_1 = own_groups("cpu", own)
    quotas = [_quota_2(root_2 / each) for each in with_parents(group_2)]
    quotas += [_quota_1(root_1 / each) for each in with_parents(group_1)]
    found = [quota for quota in quotas if quota is not None]
    return min(found) if found else None


def _quota_2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None if quota < 0 else quota / period
