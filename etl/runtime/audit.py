"""What became of a runtime setting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Audit:
    """One setting: what was `requested`, what is `in_force` as read back, and the `effect` that was observed.

    `is_inert` where it was not, or had no effect.
    """

    setting: str
    requested: str
    in_force: str
    effect: str
    is_inert: bool

    def __str__(self) -> str:
        inert = "INERT, " if self.is_inert else ""
        return f"{self.setting} {self.requested}: {inert}in force {self.in_force}; {self.effect}"
