"""What the doctor says: every finding, the one to act on first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from etl.doctor.finding import Finding, Severity
from etl.doctor.machine import Machine

SCHEMA_VERSION = 1
RANKS = (Severity.SERIOUS, Severity.WARNING, Severity.NOTE, Severity.FINE, Severity.NOT_LOOKED_AT)


@dataclass(frozen=True)
class Examination:
    """`findings` are ordered by the seconds of an epoch that their remedies would save; a serious one of which that
    cannot be told comes first, and those that need no remedy at the end.

    `seconds_per_batch` and `batches_per_epoch` are None where no training was looked at, or its length is unknown.
    """

    machine: Machine
    findings: list[Finding]
    seconds_per_batch: float | None
    batches_per_epoch: int | None

    @property
    def is_serious(self) -> bool:
        """Whether something serious was found."""
        return any(each.severity is Severity.SERIOUS for each in self.findings)

    @property
    def first(self) -> Finding | None:
        """The one to act on first; None where nothing needs a remedy."""
        return next((each for each in self.findings if each.remedy is not None), None)

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "machine": self.machine.as_dict(),
            "seconds_per_batch": self.seconds_per_batch,
            "batches_per_epoch": self.batches_per_epoch,
            "findings": [each.as_dict() for each in self.findings],
        }

    def __str__(self) -> str:
        lines = []
        for each in self.findings:
            if each.remedy is not None:
                saves = "" if each.saves_seconds is None else f", saves {each.saves_seconds:.3g} s of an epoch"
                lines.append(
                    f"{each.severity.value}: {each.title}: {each.found} ({each.evidence}). {each.remedy}{saves}."
                )
        return "\n".join(lines) or "nothing was found that slows training down"


def order(findings: list[Finding]) -> list[Finding]:
    """As `Examination.findings` are."""

    def key(finding: Finding) -> tuple[bool, float, int]:
        unknown = math.inf if finding.severity is Severity.SERIOUS else 0.0
        saves = unknown if finding.saves_seconds is None else finding.saves_seconds
        return finding.remedy is None, -saves, RANKS.index(finding.severity)

    return sorted(findings, key=key)
