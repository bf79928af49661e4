"""A check: it looks for one cause of slow training in a case, and returns a finding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from etl.doctor.machine import Machine
from etl.doctor.rank import Rank

if TYPE_CHECKING:
    from etl.doctor.observation import Observation
    from etl.doctor.setup import ModelSetup, Setup

# A finding is serious, or a warning, if its remedy saves at least this share of the time.
SERIOUS_SHARE = 0.20
WARNING_SHARE = 0.05
# Reasons for `Severity.NOT_LOOKED_AT`.
NO_TRAINING = "there is no model and no data to look at"
STEP_WITH_RANKS = "all ranks would have to take the same further steps, or would wait for each other forever"
OWN_STEP = "the training step is the user's own function, whose model is not known here"


class Severity(str, Enum):
    """The weight of a finding, the greatest first."""

    SERIOUS = "serious"
    WARNING = "warning"
    NOTE = "note"
    FINE = "fine"
    # `Finding.found` says why.
    NOT_LOOKED_AT = "not looked at"

    @property
    def place(self) -> int:
        """Place in the order of weights, from 0."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Trial:
    """A measurement without and with one remedy, in alternating turns: of training, or of what the remedy is about.

    Attributes
    ----------
    without_seconds, with_seconds : float
        Seconds of a unit: the median without the remedy, and this median times `ratio`.
    ratio, low, high : float
        Time with the remedy divided by time without it, and the ends of the 95% interval of this ratio.
    unit : str
        What takes these seconds, with its article.
    """

    without_seconds: float
    with_seconds: float
    ratio: float
    low: float
    high: float
    unit: str = "a batch"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    check, title : str
        Name of the check for programs, and its title for people.
    severity : Severity
        Weight of the finding.
    found : str
        The result, without a full stop.
    evidence : str
        The measurements behind the result, and how they were taken; may be empty.
    why : str
        Why the cause matters.
    remedy : str or None
        The one change to make; None if none is needed.
    saves_seconds : float or None
        Seconds of an epoch that the remedy saves: measured if there is a `trial`, otherwise estimated. None if unknown.
    trial : Trial or None
        Measurement of the remedy; None if the remedy was not tried.
    trial_failed : str or None
        Reason why the trial failed; None if it succeeded or there was none.
    is_suggestion : bool
        True if the remedy changes what is learnt, so that even a measured time does not count as a saving.
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
    is_suggestion: bool = False

    @property
    def saving(self) -> str | None:
        """The saving of the remedy, in words; None if that is unknown."""
        if self.saves_seconds is None:
            return None
        if self.trial is None:
            return f"would save about {self.saves_seconds:,.3g} s per epoch"
        return f"{'costs' if self.saves_seconds < 0 else 'saves'} {abs(self.saves_seconds):,.3g} s per epoch"

    def beside(self, other: Finding) -> Finding:
        """Return this finding with the evidence of both."""
        return replace(self, evidence=f"{self.evidence}; {other.evidence}")

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {**asdict(self), "severity": self.severity.value}


@dataclass(frozen=True)
class Case:
    """Everything that a check may look at."""

    machine: Machine
    # None without a training.
    setup: Setup | None = None
    observation: Observation | None = None
    # None if this process trains alone.
    rank: Rank | None = None
    # Numbers that `Check.look` keeps for `Check.apply`, by name of the check.
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def of_model(self) -> ModelSetup | None:
        """The training if its model is known; None without one, or if its step is the user's own function."""
        return None if self.setup is None else self.setup.of_model

    @property
    def unknown_model(self) -> str:
        """The reason why there is no model to look at."""
        return NO_TRAINING if self.setup is None else OWN_STEP

    @property
    def waits_for_ranks(self) -> bool:
        """True if a user's step may wait for other ranks, so that no check may take steps of its own."""
        return self.rank is not None and self.setup is not None and self.of_model is None

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches of an epoch; None without a training, or if the iterator has no length."""
        return None if self.setup is None else self.setup.batches_per_epoch


def heaviest_first(*findings: Finding) -> list[Finding]:
    """Return the findings, that of the greatest weight first; equal ones stay in order."""
    return sorted(findings, key=lambda each: each.severity.place)


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
        """Return `setup` with the remedy applied and nothing else changed; None if this process cannot do that.

        `examine` calls it after `look` has returned a finding with a remedy for the same case.
        """
        return None

    def measure(self, case: Case) -> Trial | None:  # noqa: ARG002 - overrides use it
        """Measure a remedy that does not change the training; None if `apply` is the way to try it."""
        return None

    def fine(self, found: str, evidence: str) -> Finding:
        """Return a finding that the cause was looked for and not found."""
        return Finding(self.name, self.title, Severity.FINE, found, evidence, self.why)

    def not_looked_at(self, reason: str = NO_TRAINING) -> Finding:
        """Return a finding that the cause could not be looked for."""
        return Finding(self.name, self.title, Severity.NOT_LOOKED_AT, reason, "", self.why)

    def wrong(
        self, severity: Severity, found: str, evidence: str, remedy: str, saves_seconds: float | None = None
    ) -> Finding:
        """Return a finding that the cause was found."""
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
        """Return a finding whose severity depends on the share of the time that the remedy saves, in seconds per batch.

        It is `min_severity` if the saving is small. If it is `FINE`, the remedy is left out.
        """
        typical = observation.times.typical
        saves_per_batch = min(saves_per_batch, typical)  # what was measured apart may have been slowed down
        share = saves_per_batch / typical
        severity = min(_severity_of(share), min_severity, key=lambda each: each.place)
        if severity is Severity.FINE:
            return self.fine(found, evidence)
        batches = case.batches_per_epoch
        saves = None if batches is None else max(0.0, saves_per_batch) * batches
        return self.wrong(severity, found, evidence, remedy, saves)


def _severity_of(share: float) -> Severity:
    """Return the severity of a cause that takes `share` of the time."""
    if share >= SERIOUS_SHARE:
        return Severity.SERIOUS
    return Severity.WARNING if share >= WARNING_SHARE else Severity.FINE
