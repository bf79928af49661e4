"""Progress of a comparison or of tuning, for whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class ComparisonProgress:
    """Progress of a comparison or of tuning.

    Attributes
    ----------
    phase : {"profile", "try", "write", "split", "check", "measure", "trace", "tune", "confirm"}
        The current phase.
    done : int
        Completed steps of the phase.
    total : int or None
        All steps of the phase, if known.
    share : float or None
        Share of the time budget that is used up; None if the number of rounds is fixed instead.
    predictions : dict of str to float
        Predicted seconds per epoch by strategy; empty until they are known.
    """

    phase: str
    done: int
    total: int | None
    share: float | None
    predictions: Mapping[str, float] = field(default_factory=dict)
