"""The records that an epoch left out, and saying so at its end."""

from __future__ import annotations

import warnings

from etl.iterators.loading import Loading
from etl.record import RecordError

SHOWN = 3


class Skipped:
    """Collects the errors of the records that were left out of one epoch."""

    def __init__(self) -> None:
        self._errors: list[RecordError] = []

    def add(self, loading: Loading) -> None:
        """Take note of what was left out of one batch."""
        self._errors.extend(error for _, error in sorted(loading.skipped.items()))

    def warn(self, epoch: int, records: int) -> None:
        """Warn with their number and the first of them, if there are any."""
        if not self._errors:
            return
        shown = "; ".join(map(str, self._errors[:SHOWN])) + ("; ..." if len(self._errors) > SHOWN else "")
        warnings.warn(
            f"epoch {epoch} left out {len(self._errors):,} of {records:,} records: {shown}", UserWarning, stacklevel=3
        )
