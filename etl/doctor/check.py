"""What a check is: one cause of slow training, looked for in one case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from etl.doctor.finding import Finding, Severity, severity_of
from etl.doctor.machine import Machine

if TYPE_CHECKING:
    from etl.doctor.seen import Seen
    from etl.doctor.setup import Setup

NO_TRAINING = "there is no model and no data to look at"


@dataclass(frozen=True)
class Case:
    """What is examined: the machine, and, where a model and data were given, training as it is set up and what was seen
    of it. `notes` is what a check keeps, under its name, from looking until its remedy is applied.
    """

    machine: Machine
    setup: Setup | None = None
    seen: Seen | None = None
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def batches_per_epoch(self) -> int | None:
        """None where the iterator does not tell, or there is none."""
        return None if self.setup is None else self.setup.batches_per_epoch


class Check(ABC):
    """One of the thirteen. `why` says why its cause matters."""

    name: ClassVar[str]
    title: ClassVar[str]
    why: ClassVar[str]

    @abstractmethod
    def look(self, case: Case) -> Finding:
        """What is found in `case`."""

    def apply(self, setup: Setup, case: Case) -> Setup | None:  # noqa: ARG002 - for those that override it
        """`setup` with only the remedy applied; None where that cannot be done in this process."""
        return None

    def fine(self, found: str, evidence: str) -> Finding:
        """Nothing is wrong."""
        return Finding(self.name, self.title, Severity.FINE, found, evidence, self.why)

    def not_looked_at(self, reason: str = NO_TRAINING) -> Finding:
        """It could not be looked for."""
        return Finding(self.name, self.title, Severity.NOT_LOOKED_AT, reason, "", self.why)

    def wrong(
        self, severity: Severity, found: str, evidence: str, remedy: str, saves_seconds: float | None = None
    ) -> Finding:
        """Something is, of known severity."""
        return Finding(self.name, self.title, severity, found, evidence, self.why, remedy, saves_seconds)

    def slower(
        self,
        case: Case,
        seen: Seen,
        saves_per_batch: float,
        found: str,
        evidence: str,
        remedy: str,
        least: Severity = Severity.FINE,
    ) -> Finding:
        """Something costs `saves_per_batch` seconds, which decide about the severity; it is `least` at least. Where it
        then is fine, no remedy is due.
        """
        severity = severity_of(saves_per_batch / seen.times.typical)
        order = (Severity.FINE, Severity.NOTE, Severity.WARNING, Severity.SERIOUS)
        severity = max(severity, least, key=order.index)
        if severity is Severity.FINE:
            return self.fine(found, evidence)
        batches = case.batches_per_epoch
        saves = None if batches is None else max(0.0, saves_per_batch) * batches
        return self.wrong(severity, found, evidence, remedy, saves)
