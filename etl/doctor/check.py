"""A check looks for one cause of slow training in a case, and returns a finding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from etl.doctor.machine import Machine

if TYPE_CHECKING:
    from etl.doctor.observation import Observation
    from etl.doctor.setup import Setup

# The shares of the time from which a saving is serious, and from which it is worth a warning.
SERIOUS_SHARE = 0.20
WARNING_SHARE = 0.05
NO_TRAINING = "there is no model and no data to look at"


class Severity(str, Enum):
    """The weight of a finding."""

    SERIOUS = "serious"
    WARNING = "warning"
    NOTE = "note"
    FINE = "fine"
    # `Finding.found` says why.
    NOT_LOOKED_AT = "not looked at"


@dataclass(frozen=True)
class Trial:
    """A measurement of training with one remedy, in alternating turns with training without it.

    Attributes
    ----------
    without_seconds, with_seconds : float
        Median seconds of a batch.
    ratio, low, high : float
        Time with the remedy over time without it, and the ends of its interval.
    """

    without_seconds: float
    with_seconds: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    check, title : str
        The check, by its name for programs and its name for people.
    severity : Severity
    found : str
        The result in a sentence.
    evidence : str
        The numbers behind it, and how they were measured.
    why : str
        Why it matters.
    remedy : str or None
        The one change to make, if any.
    saves_seconds : float or None
        Seconds of an epoch that the remedy saves: measured if there is a `trial`, otherwise estimated. None if unknown.
    trial : Trial or None
        The measurement of the remedy, if it was tried.
    trial_failed : str or None
        Why the remedy could not be tried.
    """

    check: str
    title: str
    severity: Severity
    found: str
    evidence: str
    why: str
    remedy: str | None = None
    saves_seconds: float | None = None
    trial: Trial | None = None
    trial_failed: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {**asdict(self), "severity": self.severity.value}


@dataclass(frozen=True)
class Case:
    """All that a check may look at.

    Attributes
    ----------
    machine : Machine
    setup : Setup or None
        The training, if a model and an iterator were given.
    observation : Observation or None
        What was measured while that training ran.
    notes : dict of str to int
        What a check, by its name, has to remember until its remedy is applied.
    """

    machine: Machine
    setup: Setup | None = None
    observation: Observation | None = None
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches of an epoch; None without a training, or if its iterator has no length."""
        return None if self.setup is None else self.setup.batches_per_epoch


class Check(ABC):
    """A search for one cause of slow training."""

    name: ClassVar[str]
    title: ClassVar[str]
    # Why the cause matters.
    why: ClassVar[str]

    @abstractmethod
    def look(self, case: Case) -> Finding:
        """Look for the cause in `case`."""

    def apply(self, setup: Setup, case: Case) -> Setup | None:  # noqa: ARG002 - overrides use them
        """Return `setup` with only the remedy applied, or None if that is impossible in this process."""
        return None

    def fine(self, found: str, evidence: str) -> Finding:
        """Return a finding that all is well."""
        return Finding(self.name, self.title, Severity.FINE, found, evidence, self.why)

    def not_looked_at(self, reason: str = NO_TRAINING) -> Finding:
        """Return a finding that the check was impossible."""
        return Finding(self.name, self.title, Severity.NOT_LOOKED_AT, reason, "", self.why)

    def wrong(
        self, severity: Severity, found: str, evidence: str, remedy: str, saves_seconds: float | None = None
    ) -> Finding:
        """Return a finding of known severity.

        Parameters
        ----------
        severity : Severity
            The weight of the finding.
        found, evidence, remedy : str
            The result, the numbers behind it and the change to make.
        saves_seconds : float or None
            Seconds of an epoch that the change saves; None if unknown.
        """
        return Finding(self.name, self.title, severity, found, evidence, self.why, remedy, saves_seconds)

    def slower(
        self,
        case: Case,
        observation: Observation,
        saves_per_batch: float,
        found: str,
        evidence: str,
        remedy: str,
        min_severity: Severity = Severity.FINE,
    ) -> Finding:
        """Return a finding whose severity follows from the time that the remedy saves.

        Parameters
        ----------
        case : Case
            The case that was looked at.
        observation : Observation
            What was measured in that case.
        saves_per_batch : float
            Seconds that the remedy saves per batch.
        found, evidence, remedy : str
            As for `wrong`. A finding of severity `FINE` has no remedy.
        min_severity : Severity
            The severity if the saving is small.
        """
        share = saves_per_batch / observation.times.typical
        severity = max(_severity_of(share), min_severity, key=_ASCENDING.index)
        if severity is Severity.FINE:
            return self.fine(found, evidence)
        batches = case.batches_per_epoch
        saves = None if batches is None else max(0.0, saves_per_batch) * batches
        return self.wrong(severity, found, evidence, remedy, saves)


_ASCENDING = (Severity.FINE, Severity.NOTE, Severity.WARNING, Severity.SERIOUS)


def _severity_of(share: float) -> Severity:
    """Return the severity of a cause that takes this share of the time."""
    if share >= SERIOUS_SHARE:
        return Severity.SERIOUS
    return Severity.WARNING if share >= WARNING_SHARE else Severity.FINE
