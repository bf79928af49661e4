"""Sections of a report. What follows from other values is a property, and so cannot contradict them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

Parent = TypeVar("Parent")


@dataclass(frozen=True)
class Section(Generic[Parent]):
    """A part of a report: fields, and properties that follow from them or from those of its `parent`.

    As JSON it has the fields and every public property of its class; what is not to be published is a method. The
    sections in its fields are copied, so that each has one parent even if it is used in several reports.
    """

    def __post_init__(self) -> None:
        """Become the parent of the sections in the fields."""
        for each in fields(self):
            object.__setattr__(self, each.name, self._adopt(getattr(self, each.name)))

    @property
    def parent(self) -> Parent:
        """The section that has this one in a field."""
        parent: Parent = vars(self)["parent"]
        return parent

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values: the fields, and what follows from them."""
        return {name: _as_json(getattr(self, name)) for name in self.published()}

    @classmethod
    def published(cls) -> list[str]:
        """Return the names of the fields, and those of the public properties."""
        properties = [name for name, value in vars(cls).items() if isinstance(value, property)]
        return [each.name for each in fields(cls)] + [name for name in properties if not name.startswith("_")]

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
