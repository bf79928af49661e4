"""The CPUs and the memory that this process may use, within the limits of its container."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

CPU_TOPOLOGY = Path("/sys/devices/system/cpu")
CGROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
# A control group's files with its limit and with the memory in use, and the key in memory.stat of the file pages among
# that, which the system reclaims first; in version 2 and in version 1. "max", or a number near 2^63, is no limit.
_MEMORY_FILES_2 = ("memory.max", "memory.current", "inactive_file")
_MEMORY_FILES_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


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


def available_nbytes() -> int:
    """Return how many bytes this process can take without swapping or passing its container's limit, at least 0."""
    left = cgroup_nbytes_left()
    available: int = psutil.virtual_memory().available
    return available if left is None else max(0, min(available, left))


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
    group_2, group_1 = _own_groups("cpu", own)
    quotas = [_quota_2(root_2 / each) for each in _with_parents(group_2)]
    quotas += [_quota_1(root_1 / each) for each in _with_parents(group_1)]
    found = [quota for quota in quotas if quota is not None]
    return min(found) if found else None


def cgroup_nbytes_left(root_2: Path = CGROUPS, root_1: Path = CGROUPS / "memory", own: Path = OWN_GROUP) -> int | None:
    """Return the bytes that the control groups around this process have left; None if none of them sets a limit.

    Parameters
    ----------
    root_2 : Path
        Root of the control groups of version 2.
    root_1 : Path
        Root of version 1's controller of memory.
    own : Path
        File that lists the groups of this process.
    """
    group_2, group_1 = _own_groups("memory", own)
    left = [_nbytes_left(root_2 / each, _MEMORY_FILES_2) for each in _with_parents(group_2)]
    left += [_nbytes_left(root_1 / each, _MEMORY_FILES_1) for each in _with_parents(group_1)]
    found = [nbytes for nbytes in left if nbytes is not None]
    return min(found) if found else None


def _own_groups(controller: str, own: Path) -> tuple[Path, Path]:
    """Return this process's group in version 2, and in version 1's `controller`, as paths below their roots.

    `own` has lines of `hierarchy:controllers:/path`. A group that it does not list is the root itself, as is often the
    case in a container.
    """
    groups = {"": Path(), controller: Path()}
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, _, found = line.partition(":")
        controllers, _, path = found.partition(":")
        for name in controllers.split(","):
            if name in groups:
                groups[name] = Path(path.lstrip("/"))
    return groups[""], groups[controller]


def _with_parents(group: Path) -> list[Path]:
    """Return `group` and the groups around it, whose limits apply to it, too."""
    return [group, *group.parents]


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


def _nbytes_left(group: Path, files: tuple[str, str, str]) -> int | None:
    *sizes, cached = files
    try:
        limit, used = ((group / name).read_text().strip() for name in sizes)
        lines = (group / "memory.stat").read_text().splitlines()
        reclaimable = sum(int(line.split()[1]) for line in lines if line.startswith(f"{cached} "))
        return None if limit == "max" else int(limit) - int(used) + reclaimable
    except (OSError, ValueError):
        return None
