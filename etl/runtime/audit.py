"""What became of a runtime setting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Audit:
    """One setting: what was `requested`, what is `in_force` as read back, and the `effect` that was observed.

    `alarm` is empty if the setting is in force. Otherwise it says what was requested, what is in force instead, and
    what to do about it.
    """

    setting: str
    requested: str
    in_force: str
    effect: str
    alarm: str = ""

    @property
    def is_inert(self) -> bool:
        """True if the setting is not in force, or has no effect."""
        return bool(self.alarm)

    def __str__(self) -> str:
        return f"{self.setting} {self.requested}: in force {self.in_force}; {self.effect}"
