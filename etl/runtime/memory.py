"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

import psutil

from etl.runtime.control_groups import CGROUP_2, OWN_GROUP, own_groups, with_parents

CGROUP_1 = Path("/sys/fs/cgroup/memory")
# Of a group: its limit and what it uses, in version 2 and in version 1, and in memory.stat the pages of files among
# that, which the system gives up first. No limit is "max", or a number near 2^63.
FILES_2 = ("memory.max", "memory.current", "inactive_file")
FILES_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_nbytes() -> int:
    """Bytes that can be taken without swapping, no more than the container's limit leaves; at least 0."""
    left = cgroup_nbytes_left()
    available: int = psutil.virtual_memory().available
    return available if left is None else max(0, min(available, left))


def cgroup_nbytes_left(root_2: Path = CGROUP_2, root_1: Path = CGROUP_1, own: Path = OWN_GROUP) -> int | None:
    """Bytes up to the limit of this process's control group or of one that it is in; None where none sets a limit."""
    group_2, group_1 = own_groups("memory", own)
    left = [_left(root_2 / each, FILES_2) for each in with_parents(group_2)]
    left += [_left(root_1 / each, FILES_1) for each in with_parents(group_1)]
    found = [nbytes for nbytes in left if nbytes is not None]
    return min(found) if found else None


def _left(group: Path, files: tuple[str, str, str]) -> int | None:
    *sizes, cached = files
    try:
        limit, used = ((group / name).read_text().strip() for name in sizes)
        lines = (group / "memory.stat").read_text().splitlines()
        given_up = sum(int(line.split()[1]) for line in lines if line.startswith(f"{cached} "))
        return None if limit == "max" else int(limit) - int(used) + given_up
    except (OSError, ValueError):
        return None
