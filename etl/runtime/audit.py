"""The report on a runtime setting: was it put in force, and what does it do?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Audit:
    """A runtime setting: the requested value, the value that was read back, and the observed effect.

    Attributes
    ----------
    setting : str
        "gc", "heap", "threads" or "device memory".
    requested : str
        The policy that was asked for.
    in_force : str
        The state that was read back.
    effect : str
        The effect that was observed.
    alarm : str
        Empty if the setting is in force; otherwise what was requested, what is in force instead, and what to do.
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
