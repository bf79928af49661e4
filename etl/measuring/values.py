"""Conversion of dataclasses to JSON values and back, for messages between processes and for files."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from typing import Self


class JsonValues:
    """A base class of dataclasses that can be sent to another process.

    Fields hold numbers, text, None, enumerations, other such dataclasses, or lists, tuples and mappings of these. The
    keys of a mapping are text.
    """

    def to_json(self) -> dict[str, Any]:
        """Return JSON values from which `from_json` makes an equal object."""
        values: dict[str, Any] = to_json(self)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the object from which `to_json` made `values`.

        Raises
        ------
        TypeError
            If a field without a default is missing, or the class has no such field.
        """
        made: Self = from_json(cls, values)
        return made


def to_json(value: Any) -> Any:
    """Return `value` with every dataclass in it as a dict, and every tuple as a list."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: to_json(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(each) for each in value]
    return value


def from_json(kind: Any, value: Any) -> Any:
    """Return the object of type `kind` from which `to_json` made `value`."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: from_json(hints.get(name), each) for name, each in value.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):  # of one type and None
        return None if value is None else from_json(next(each for each in arguments if each is not type(None)), value)
    if origin is tuple:
        each_kind = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        return tuple(from_json(one, each) for one, each in zip(each_kind, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: from_json(arguments[1], each) for name, each in value.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return [from_json(arguments[0], each) for each in value]
    return value
