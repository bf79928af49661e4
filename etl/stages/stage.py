"""What a stage is, and how it is told from another."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np

from etl.sources.record import Record

# Metadata of a dataclass field that a stage did not have at first: at its default the stage is described as before, and
# the fingerprints in stores stay what they are.
ADDED_LATER = {"added_later": True}


class Stage(Protocol):
    """One step from encoded bytes to a training array.

    A frozen dataclass is the usual form: its class, its `version` where it has one, and its fields identify it.
    Calls must not change the record they are given, and give equal bytes for equal records. What a stage may say of
    itself in attributes: `fixes_size = True` where all records have features of one size after it;
    `changes_length = True` where the first axis of a field may have another size after it than before it;
    `is_random = True` where it draws at random, and then it is called with the record and a `numpy.random.Generator` of
    its own, seeded by seed, epoch and record.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, record: Record, /) -> Record: ...


class RandomStage(Protocol):
    """A stage with `is_random = True`."""

    is_random: ClassVar[bool]

    @property
    def name(self) -> str: ...

    def __call__(self, record: Record, random: np.random.Generator, /) -> Record: ...


AnyStage = Stage | RandomStage | Callable[[Record], Record]


def stage_name(stage: AnyStage) -> str:
    """The stage's `name`, or a plain function's own."""
    name = getattr(stage, "name", None) or getattr(stage, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"stage {stage!r} needs a name: give it an attribute `name`, or use a function")
    return name


def fixes_size(stage: AnyStage) -> bool:
    """Whether the stage says that all records have features of one size after it."""
    return bool(getattr(stage, "fixes_size", False))


def changes_length(stage: AnyStage) -> bool:
    """Whether the stage says that sequences may have another number of steps after it."""
    return fixes_size(stage) or bool(getattr(stage, "changes_length", False))


def is_random(stage: AnyStage) -> bool:
    """Whether the stage says that it draws at random."""
    return bool(getattr(stage, "is_random", False))


def describe_stage(stage: AnyStage) -> dict[str, Any]:
    """What identifies `stage` in a fingerprint, as JSON values: its name, class or function, `version`, and settings.

    Settings are the fields of a dataclass, the attributes of another object, and what a function took from the one
    around it. Raises `TypeError` for a setting that is no number, string, array, or a collection of these.
    """
    description = {
        "name": stage_name(stage),
        "kind": _kind(stage),
        "version": getattr(stage, "version", 1),
        "settings": _settings(stage),
    }
    try:
        described: dict[str, Any] = json.loads(json.dumps(description, default=_describe_value))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"stage {stage_name(stage)!r} cannot be told from others, which presaving needs: {error}; "
            "make it a dataclass whose fields are numbers, strings and arrays"
        ) from error
    return described


def _kind(stage: Any) -> str:
    # A subclass does something else, and does not inherit it.
    declared = vars(type(stage)).get("fingerprint_kind")
    if isinstance(declared, str):
        return declared
    kind: Any = stage if hasattr(stage, "__qualname__") else type(stage)
    return f"{kind.__module__}.{kind.__qualname__}"


def _settings(stage: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(stage) and not isinstance(stage, type):
        return {
            field.name: getattr(stage, field.name)
            for field in dataclasses.fields(stage)
            if not (field.metadata.get("added_later") and getattr(stage, field.name) == field.default)
        }
    if inspect.isfunction(stage):
        return dict(inspect.getclosurevars(stage).nonlocals)
    return dict(getattr(stage, "__dict__", {}))


def _describe_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return {"dtype": value.dtype.str, "shape": value.shape, "sha256": digest}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")
