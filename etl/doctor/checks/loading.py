"""Step 3: does training wait for data?"""

from __future__ import annotations

from typing import Any

from etl.doctor.check import Case, Check
from etl.doctor.finding import Finding
from etl.doctor.setup import Setup
from etl.iterators import AsyncIterator

# A wait that is no longer than this share of a step is not seen to be one.
NO_WAIT = 0.02


class LoadingBottleneck(Check):
    """Whether the wait for a batch is above zero again and again."""

    name = "loading"
    title = "ETL bottleneck"
    why = "the time of training is that of loading and that of compute, unless one hides behind the other"

    def look(self, case: Case) -> Finding:
        if case.setup is None or case.seen is None:
            return self.not_looked_at()
        seen = case.seen
        wait, compute = seen.etl_seconds, seen.compute_seconds
        waits = sum(each > NO_WAIT * compute for each in seen.times.etl)
        evidence = (
            f"a batch is waited for {wait * 1e3:.1f} ms (median of {seen.count} batches after the first), and computed "
            f"on for {compute * 1e3:.1f} ms; {waits} of {seen.count} waits are longer than {NO_WAIT:.0%} of that"
        )
        if wait <= NO_WAIT * compute:
            return self.fine("training does not wait for data", evidence)
        if _is_ahead(case.setup):
            found = "training waits for data though it is loaded ahead"
            remedy = (
                "load less, or with more: presave the records (`etl presave`), give loading more threads, or see "
                "`etl doctor SOURCE` for the stage that takes the time"
            )
            return self.slower(case, seen, wait, found, evidence, remedy)
        found = "loading and compute take turns: nothing is loaded while the model trains"
        remedy = (
            "load ahead: etl.AsyncIterator(iterator); and presave the records (`etl presave`) where that is too slow"
        )
        return self.slower(case, seen, min(wait, compute), found, evidence, remedy)

    def apply(self, setup: Setup, case: Case) -> Setup | None:  # noqa: ARG002
        if _is_ahead(setup) or not getattr(setup.batches, "async_supported", False):
            return None
        iterator: Any = setup.batches
        return setup.loading(AsyncIterator(iterator))


def _is_ahead(setup: Setup) -> bool:
    """Whether the iterator loads while the caller computes, as far as it tells."""
    batches = setup.batches
    if isinstance(batches, AsyncIterator):
        return batches.prefetch_size > 0
    return getattr(batches, "num_workers", 0) > 0  # torch's DataLoader
