"""Entry points: sources and strategies of other packages, which are loaded only if they are asked for by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

SOURCES = "etl.sources"
STRATEGIES = "etl.strategies"
KINDS = {SOURCES: "source", STRATEGIES: "strategy"}


def registered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of `group`, `SOURCES` or `STRATEGIES`, by name. Nothing is imported."""
    return {each.name: each for each in sorted(entry_points(group=group), key=lambda each: each.name)}


def load(group: str, name: str) -> Any:
    """Import what the entry point `name` of `group` refers to.

    Raises `ValueError` if there is no such entry point, several packages have one, or importing it fails.
    """
    kind = KINDS[group]
    found = sorted({each.value for each in entry_points(group=group, name=name)})
    if not found:
        known = ", ".join(registered(group)) or "none"
        raise ValueError(
            f"no {kind} is registered as {name!r}; registered are: {known}. Install the package that has the entry "
            f"point {name!r} of the group {group!r}"
        )
    if len(found) > 1:
        raise ValueError(f"two packages register a {kind} as {name!r}: {' and '.join(found)}; uninstall one of them")
    try:
        return registered(group)[name].load()
    except (Exception, SystemExit) as error:  # importing may raise anything
        raise ValueError(
            f"{kind} {name!r}, which is {found[0]}, cannot be imported: {type(error).__name__}: {error}"
        ) from error
