"""Progress of a comparison or of tuning, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ComparisonProgress:
    """Progress of a comparison or of tuning.

    Attributes
    ----------
    phase : {"start", "profile", "try", "write", "split", "check", "measure", "trace", "tune", "confirm"}
        The current phase.
    done : int
        Completed steps of the phase.
    total : int or None
        All steps of the phase, if known.
    share : float or None
        Share of the time budget that is used up; None if the number of rounds is fixed instead.
    """

    phase: str
    done: int
    total: int | None
    share: float | None
