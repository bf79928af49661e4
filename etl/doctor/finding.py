"""What a check of the doctor found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

# From which share of the time that a remedy would save a finding is serious, and from which it is worth a warning.
SERIOUS_SHARE = 0.20
WARNING_SHARE = 0.05


class Severity(str, Enum):
    """How much a finding matters."""

    SERIOUS = "serious"
    WARNING = "warning"
    NOTE = "note"
    FINE = "fine"
    # With the reason in `Finding.found`.
    NOT_LOOKED_AT = "not looked at"


@dataclass(frozen=True)
class Trial:
    """Some batches with only the remedy applied, in turns with as many without: seconds of a batch (medians), and the
    interval of the second over the first.
    """

    without_seconds: float
    with_seconds: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Finding:
    """`found` says it in a sentence, `evidence` gives the number and how it was taken, `why` says why that matters and
    `remedy` the one change to make (None where none is due).

    `saves_seconds` of an epoch is what the remedy would save: as the `trial` measured it, otherwise estimated; None
    where that cannot be told.
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
        """JSON values."""
        return {**asdict(self), "severity": self.severity.value}


def severity_of(share: float) -> Severity:
    """Of a remedy that would save this share of the time."""
    if share >= SERIOUS_SHARE:
        return Severity.SERIOUS
    return Severity.WARNING if share >= WARNING_SHARE else Severity.FINE
