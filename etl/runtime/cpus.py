"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from etl.runtime.control_groups import CGROUP_2, OWN_GROUP, own_groups, with_parents

CGROUP_1 = Path("/sys/fs/cgroup/cpu")


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
    groups_2, groups_1 = own_groups("cpu", own)
    quotas = [_quota_2(root_2 / each) for each in with_parents(groups_2)]
    quotas += [_quota_1(root_1 / each) for each in with_parents(groups_1)]
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
