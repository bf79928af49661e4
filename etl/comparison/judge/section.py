"""The parts of a report, which have derived values beside their fields."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

Parent = TypeVar("Parent")


@dataclass(frozen=True)
class Section(Generic[Parent]):
    """A part of a report: fields, and properties that are derived from the fields or from the `parent`.

    The JSON has all fields and all properties of the class. Derived values that are not published are methods.
    A section that is given as a field is copied, so that each copy has one parent even if several reports use it.
    """

    def __post_init__(self) -> None:
        """Copy the sections in the fields, and become the parent of the copies."""
        for each in fields(self):
            object.__setattr__(self, each.name, self._adopt(getattr(self, each.name)))

    @property
    def parent(self) -> Parent:
        """The section that holds this one in a field."""
        parent: Parent = vars(self)["parent"]
        return parent

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: the fields and the properties."""
        return {name: _as_json(getattr(self, name)) for name in self.published()}

    @classmethod
    def published(cls) -> list[str]:
        """Return the names of the fields and of the properties."""
        kinds = cls.__mro__[: cls.__mro__.index(Section)]
        properties = [name for kind in kinds for name, value in vars(kind).items() if isinstance(value, property)]
        return [each.name for each in fields(cls)] + properties

    def _adopt(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._adopt(each) for each in value]
        if isinstance(value, Section):
            value = replace(value)
            vars(value)["parent"] = self
        return value


def _as_json(value: Any) -> Any:
    if isinstance(value, Section):
        return value.as_dict()
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
