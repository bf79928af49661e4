"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP_2 = Path("/sys/fs/cgroup")
CGROUP_1 = Path("/sys/fs/cgroup/cpu")
OWN_GROUP = Path("/proc/self/cgroup")


def available_cpus() -> int:
    """CPUs that the scheduler lets this process run on, no more than its container pays for; at least 1.

    The smaller of its affinity (`taskset`) and the quota of its control group, `cpu.max` or for version 1
    `cpu.cfs_quota_us`, rounded up.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def affinity_of(count: int) -> list[int]:
    """The first `count` CPUs that the scheduler lets this process run on, by number; all where it has fewer."""
    return sorted(os.sched_getaffinity(0))[:count]


def cgroup_quota(root_2: Path = CGROUP_2, root_1: Path = CGROUP_1, own: Path = OWN_GROUP) -> float | None:
    """CPUs that this process's control group and those it is in allow; None where none sets a limit."""
    groups_2, groups_1 = _own_groups(own)
    quotas = [_quota_2(root_2 / each) for each in _with_parents(groups_2)]
    quotas += [_quota_1(root_1 / each) for each in _with_parents(groups_1)]
    found = [quota for quota in quotas if quota is not None]
    return min(found) if found else None


def _own_groups(own: Path) -> tuple[Path, Path]:
    """This process's groups below the roots of version 2 and of version 1's controller "cpu"; the roots where `own`,
    lines of `hierarchy:controllers:/path`, names none. In a container the roots often are its own groups.
    """
    groups = {"": Path(), "cpu": Path()}
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, _, found = line.partition(":")
        controllers, _, path = found.partition(":")
        for controller in controllers.split(","):
            if controller in groups:
                groups[controller] = Path(path.lstrip("/"))
    return groups[""], groups["cpu"]


def _with_parents(group: Path) -> list[Path]:
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
