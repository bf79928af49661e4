"""The records that an epoch left out, and saying so at its end."""

from __future__ import annotations

import warnings

from etl.loading.batch_plan import Loading
from etl.sources.record import RecordError

SHOWN = 3


class Skipped:
    """Collects the errors of the records that were left out of one epoch."""

    def __init__(self) -> None:
        self._count = 0
        self._first: list[RecordError] = []

    def add(self, loading: Loading) -> None:
        """Take note of what was left out of one batch, but for repeated records, which count for another batch."""
        if not loading.skipped:
            return
        own = len(loading) - loading.repeated
        errors = [error for row, error in sorted(loading.skipped.items()) if row < own]
        self._count += len(errors)
        self._first += errors[: max(0, SHOWN - len(self._first))]

    def warn(self, epoch: int, records: int) -> None:
        """Warn with their number and the first of them, if there are any."""
        if not self._count:
            return
        shown = "; ".join(map(str, self._first)) + ("; ..." if self._count > SHOWN else "")
        warnings.warn(
            f"epoch {epoch} left out {self._count:,} of {records:,} records: {shown}", UserWarning, stacklevel=3
        )
