"""What a stage is, and how it is told from another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from etl.record import Record


class Stage(Protocol):
    """One step from encoded bytes to a training array.

    A frozen dataclass is the usual form: its class, its `version` where it has one, and its fields identify it.
    Calls must not change the record they are given, and give equal bytes for equal records.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, record: Record, /) -> Record: ...


def stage_name(stage: Stage | Callable[[Record], Record]) -> str:
    """The stage's `name`, or a plain function's own."""
    name = getattr(stage, "name", None) or getattr(stage, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"stage {stage!r} needs a name: give it an attribute `name`, or use a function")
    return name


def describe_stage(stage: Stage | Callable[[Record], Record]) -> dict[str, Any]:
    """What identifies `stage` in a fingerprint: JSON values only.

    A plain function is known by its module, name and `version` attribute; raise that when what it does changes.
    """
    kind = stage if hasattr(stage, "__qualname__") else type(stage)
    description: dict[str, Any] = {
        "name": stage_name(stage),
        "kind": f"{kind.__module__}.{kind.__qualname__}",
        "version": getattr(stage, "version", 1),
    }
    if dataclasses.is_dataclass(stage) and not isinstance(stage, type):
        description["settings"] = dataclasses.asdict(stage)
    return description
