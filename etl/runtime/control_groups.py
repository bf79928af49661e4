"""The control groups of this process: what its container may use."""

from __future__ import annotations

from pathlib import Path

CGROUP_2 = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")


def own_groups(controller: str, own: Path = OWN_GROUP) -> tuple[Path, Path]:
    """This process's groups below the roots of version 2 and of version 1's `controller`; the roots where `own`,
    lines of `hierarchy:controllers:/path`, names none. In a container the roots often are its own groups.
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


def with_parents(group: Path) -> list[Path]:
    """`group` and those that it is in, whose limits are its own, too."""
    return [group, *group.parents]
