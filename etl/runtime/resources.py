"""The CPUs and the memory that this process may use, within the limits of its container and of its own.

`presave/resources.py` is a link to this file: `presave` must not import `etl`, and the environments of other libraries'
loaders, in which this is imported, have no `presave`.
"""

from __future__ import annotations

import contextlib
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


def available_cpus(pid: int = 0) -> int:
    """Return how many CPUs this process, or the one with this id, may use, at least 1.

    This is the smaller of its affinity (`taskset`) and the quota of its control group (`cpu.max`, or in version 1
    `cpu.cfs_quota_us`), rounded up.
    """
    affinity = len(os.sched_getaffinity(pid)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def rank_cpus() -> int:
    """Return how many CPUs this process may use, or its share if torchrun has started several ranks on this machine.

    The share is an equal one of torchrun's CPUs. A rank that is bound to fewer has those.
    """
    cpus, ranks = available_cpus(), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if ranks > 1:
        with contextlib.suppress(OSError):  # torchrun has ended
            cpus = max(1, min(cpus, available_cpus(os.getppid()) // ranks))
    return cpus


def available_cores() -> int | None:
    """Return how many physical cores this process may use; None if the system does not say.

    Logical CPUs that share a core (SMT, hyper-threading) count once. A quota of the control group limits the number.
    """
    try:
        cores = {
            (CPU_TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
            for cpu in os.sched_getaffinity(0)
        }
    except (OSError, AttributeError):
        return None
    return min(len(cores), available_cpus())


def rank_cores() -> int | None:
    """Return how many physical cores this process may use, or its share as in `rank_cpus`; None if it is not known."""
    cores = available_cores()
    return None if cores is None else max(1, cores * rank_cpus() // available_cpus())


def affinity_of(count: int) -> list[int]:
    """Return the ids of the first `count` CPUs that this process may run on, or of all if there are fewer."""
    return sorted(os.sched_getaffinity(0))[:count]


def cgroup_quota() -> float | None:
    """Return the CPUs that the control groups around this process allow; None if none of them sets a limit."""
    groups_2, groups_1 = _groups("cpu")
    quotas = [_quota(each / "cpu.max") for each in groups_2]
    quotas += [_quota(each / "cpu.cfs_quota_us", each / "cpu.cfs_period_us") for each in groups_1]
    return min((quota for quota in quotas if quota is not None), default=None)


def available_nbytes() -> int:
    """Return how many bytes this process can take without swapping or passing a limit, at least 0.

    The limits are those of its container (control groups) and of the process itself (`ulimit -v` and `ulimit -d`).
    """
    left = [limit - used for limit, used in _own_limits()]
    of_groups = cgroup_nbytes_left()
    return max(0, min([psutil.virtual_memory().available, *left, *([] if of_groups is None else [of_groups])]))


def usable_nbytes() -> int:
    """Return how many bytes this process may use in all: those of the machine, or of its container if that has less."""
    groups_2, groups_1 = _groups("memory")
    limits = [_limit(each / _MEMORY_FILES_2[0]) for each in groups_2]
    limits += [_limit(each / _MEMORY_FILES_1[0]) for each in groups_1]
    return min([psutil.virtual_memory().total, *(limit for limit in limits if limit is not None)])


def cgroup_nbytes_left() -> int | None:
    """Return the bytes that the control groups around this process have left; None if none of them sets a limit."""
    groups_2, groups_1 = _groups("memory")
    left = [_nbytes_left(each, _MEMORY_FILES_2) for each in groups_2]
    left += [_nbytes_left(each, _MEMORY_FILES_1) for each in groups_1]
    return min((nbytes for nbytes in left if nbytes is not None), default=None)


def _groups(controller: str) -> list[list[Path]]:
    """Return the folders of this process's control group and of those around it, whose limits apply, too.

    First those of version 2, then those of `controller` in version 1. `OWN_GROUP` has lines of
    `hierarchy:controllers:/path`. A group that it does not list is the root itself, as is often the case in a
    container.
    """
    own = {"": Path(), controller: Path()}
    try:
        lines = OWN_GROUP.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, _, found = line.partition(":")
        controllers, _, path = found.partition(":")
        for name in controllers.split(","):
            if name in own:
                own[name] = Path(path.lstrip("/"))
    roots = {"": CGROUPS, controller: CGROUPS / controller}
    return [[roots[name] / each for each in (group, *group.parents)] for name, group in own.items()]


def _limit(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max" is no limit
        return None


def _nbytes_left(group: Path, files: tuple[str, str, str]) -> int | None:
    limit, used = (_limit(group / name) for name in files[:2])
    if limit is None or used is None:
        return None
    try:
        lines = (group / "memory.stat").read_text().splitlines()
        return limit - used + sum(int(line.split()[1]) for line in lines if line.startswith(f"{files[2]} "))
    except (OSError, ValueError):
        return limit - used


def _own_limits() -> list[tuple[int, int]]:
    """Return the limits in force of this process's memory, each with what is used of it, in bytes."""
    try:
        import resource
    except ImportError:  # on Windows
        return []
    used = psutil.Process().memory_info()
    limited = {resource.RLIMIT_AS: "vms", resource.RLIMIT_DATA: "data"}  # with what psutil calls the memory
    soft = {name: resource.getrlimit(kind)[0] for kind, name in limited.items()}
    return [(limit, getattr(used, name)) for name, limit in soft.items() if limit != resource.RLIM_INFINITY]


def _quota(*files: Path) -> float | None:
    """Return the CPUs that a control group allows, by its files with quota and period; None without a limit."""
    try:
        quota, period = (int(number) for file in files for number in file.read_text().split())
    except (OSError, ValueError):  # "max" is no limit
        return None
    return None if quota < 0 else quota / period
