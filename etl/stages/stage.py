"""The protocol of a stage, and the description that identifies one in fingerprints."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np

from presave import Record

# Metadata of a dataclass field that a stage did not have at first. At its default it is left out of the description, so
# that the fingerprints in stores stay valid.
ADDED_LATER = {"added_later": True}


class Stage(Protocol):
    """One step from encoded bytes to a training array.

    The usual form is a frozen dataclass, which is identified by its class, its `version`, if it has one, and its
    fields. A call must not change the record it is given, and returns equal bytes for equal records.

    A stage may have these attributes:

    - `fixes_size = True`: after it all records have features of one size.
    - `changes_length = True`: it may change the size of a field's first axis.
    - `is_random = True`: it is called with the record and a `numpy.random.Generator` of its own, seeded by seed, epoch
      and record.
    - `written_dtype` and `write_into(features, out)`: it can write features of that dtype straight into a batch.
    - `fingerprint_kind`: a name that stands for the class in fingerprints, so that the class can be moved or renamed
      while stores stay valid. Subclasses do not inherit it.
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
    """Return the stage's `name`, or a plain function's own."""
    name = getattr(stage, "name", None) or getattr(stage, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"stage {stage!r} needs a name: give it an attribute `name`, or use a function")
    return name


def fixes_size(stage: AnyStage) -> bool:
    """Return whether all records have features of one size after the stage."""
    return bool(getattr(stage, "fixes_size", False))


def changes_length(stage: AnyStage) -> bool:
    """Return whether sequences may have another number of steps after the stage."""
    return fixes_size(stage) or bool(getattr(stage, "changes_length", False))


def is_random(stage: AnyStage) -> bool:
    """Return whether the stage is random."""
    return bool(getattr(stage, "is_random", False))


def describe_stage(stage: AnyStage) -> dict[str, Any]:
    """Return what identifies `stage` in a fingerprint, as JSON values: name, class or function, version and settings.

    Settings are the fields of a dataclass, the attributes of another object, and the variables that a function takes
    from the function around it. Raises `TypeError` for a setting other than numbers, strings, arrays and collections of
    these.
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
