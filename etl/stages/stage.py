"""The protocol of a stage, and the description that identifies one in fingerprints."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np

from presave import Record

# Metadata of a dataclass field that was added to a stage later. A field at its default is left out of the description,
# so that the fingerprints in older stores stay valid.
ADDED_LATER = {"added_later": True}


class Stage(Protocol):
    """One step from encoded bytes to a training array: a function from record to record.

    A stage is usually a frozen dataclass. Its class, its fields and its `version` (if it has one) identify it. A call
    must not change its argument, and must return equal bytes for equal records.

    A stage may have these attributes:

    - `fixes_size = True`: the features of all records have the same size after the stage.
    - `changes_length = True`: the stage may change the size of a field's first axis.
    - `is_random = True`: the stage is called with the record and a `numpy.random.Generator`, seeded by seed, epoch,
      record and the stage's place in the pipeline. It must not keep the generator, which then serves others.
    - `written_dtype` and `write_into(features, out)`: the stage can write features of that dtype straight into a batch.
      A random stage takes the generator as a third argument.
    - `fingerprint_kind`: a name that replaces the class in fingerprints, so that stores stay valid if the class is
      moved or renamed. Subclasses do not inherit it.
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
    """Return the stage's `name`, or the `__name__` of a function; raises `TypeError` if there is neither."""
    name = getattr(stage, "name", None) or getattr(stage, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"stage {stage!r} needs a name: give it an attribute `name`, or use a function")
    return name


def fixes_size(stage: AnyStage) -> bool:
    """Return whether the features of all records have the same size after the stage."""
    return bool(getattr(stage, "fixes_size", False))


def changes_length(stage: AnyStage) -> bool:
    """Return whether the stage may change the number of steps of a sequence."""
    return fixes_size(stage) or bool(getattr(stage, "changes_length", False))


def is_random(stage: AnyStage) -> bool:
    """Return whether the stage is random."""
    return bool(getattr(stage, "is_random", False))


def is_of_etl(stage: AnyStage) -> bool:
    """Return whether the stage is one of etl, not a user's or a subclass: it changes features alone.

    It reads no field that a batch does not have.
    """
    return type(stage).__module__.startswith("etl.stages.")


def describe_stage(stage: AnyStage) -> dict[str, Any]:
    """Return what identifies `stage` in a fingerprint, as JSON values: name, class or function, version and settings.

    Settings are the fields of a dataclass or NamedTuple, the attributes of any other object, or the default values of a
    function and the variables that it captures from an enclosing function. Those of a method are its object's and its
    default values, and those of a `functools.partial` its function and arguments. Raises `TypeError` unless settings
    are numbers, strings, arrays, or collections of these.
    """
    description = {"name": stage_name(stage), **_identity(stage)}
    try:
        described: dict[str, Any] = json.loads(json.dumps(description, default=_describe_value))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"stage {stage_name(stage)!r} cannot be identified, which presaving needs: {error}; "
            "make it a dataclass whose fields are numbers, strings and arrays"
        ) from error
    return described


def _identity(stage: Any) -> dict[str, Any]:
    return {"kind": _kind(stage), "version": getattr(stage, "version", 1), "settings": _settings(stage)}


def _kind(stage: Any) -> str:
    # Not inherited, because a subclass may do something else.
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
        return {**inspect.getclosurevars(stage).nonlocals, **_defaults(stage)}
    if inspect.ismethod(stage):
        own = getattr(stage, "__dict__", {}) if inspect.isclass(stage.__self__) else _settings(stage.__self__)
        return {**own, **_defaults(stage.__func__)}
    if isinstance(stage, functools.partial):
        return {"function": _identity(stage.func), "arguments": stage.args, "keywords": stage.keywords}
    # Attributes are in a dictionary, in slots, or in both. Those of a NamedTuple are in neither.
    state = object.__getstate__(stage)
    slots = state[1] if isinstance(state, tuple) else {}
    fields = stage._asdict() if isinstance(stage, tuple) and hasattr(stage, "_asdict") else {}
    return {**getattr(stage, "__dict__", {}), **slots, **fields}


def _defaults(function: Any) -> dict[str, Any]:
    """Return the default values of parameters: functions that a loop has made may differ in nothing else."""
    values = {
        "default values": getattr(function, "__defaults__", None),
        "keyword default values": getattr(function, "__kwdefaults__", None),
    }
    return {name: value for name, value in values.items() if value}


def _describe_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return {"dtype": value.dtype.str, "shape": value.shape, "sha256": digest}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")
