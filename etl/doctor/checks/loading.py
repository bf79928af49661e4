"""Step 3: does training wait for data?"""

from __future__ import annotations

from etl.doctor.check import Case, Check, Finding, Severity
from etl.doctor.setup import Setup
from etl.iterators import AsyncIterator
from etl.iterators.indexed import IndexedIterator

# A wait that is shorter than this share of a training step does not count.
NO_WAIT = 0.02


class LoadingBottleneck(Check):
    """A check that each batch is ready when training asks for it."""

    name = "loading"
    title = "ETL bottleneck"
    why = "training time is loading time plus compute time, unless both run at the same time"

    def look(self, case: Case) -> Finding:
        if case.setup is None or case.observation is None:
            return self.not_looked_at()
        observation = case.observation
        wait, compute = observation.etl_seconds, observation.compute_seconds
        waits = sum(each > NO_WAIT * compute for each in observation.times.etl)
        evidence = (
            f"the loop waits {wait * 1e3:.1f} ms for a batch and computes for {compute * 1e3:.1f} ms (medians of "
            f"{observation.count} batches); {waits} of {observation.count} waits are longer than {NO_WAIT:.0%} of a "
            "step"
        )
        if observation.diagnosis is not None and observation.diagnosis.why:
            evidence += f"; {observation.diagnosis.why}"
        if wait <= NO_WAIT * compute:
            return self.fine("training does not wait for data", evidence)
        rank_wait = observation.rank_wait_seconds
        if rank_wait > 0:
            evidence += f"; besides, it waits {rank_wait * 1e3:.1f} ms for other ranks"
        if rank_wait >= wait:
            return self.wrong(
                Severity.NOTE,
                "this rank waits longer for other ranks than for data",
                evidence,
                "look at the rank that waits least; if all ranks wait for each other, the time to load varies between "
                "batches: load more of them ahead",
            )
        if _is_ahead(case.setup):
            found = "training waits for data, although the data are loaded ahead"
            remedy = (
                "presave the records (`etl presave`), give loading more threads, or find the slow stage with "
                "`etl doctor SOURCE`"
            )
            return self.slower(case, observation, wait - rank_wait, found, evidence, remedy)
        found = "loading and compute take turns: nothing is loaded while the model trains"
        remedy = (
            "load ahead with etl.AsyncIterator(iterator); if that is too slow, also presave the records (`etl presave`)"
        )
        if not _takes_turns(case.setup):
            found, remedy = "training waits for data", f"if nothing loads ahead yet, {remedy}"
        return self.slower(case, observation, min(wait - rank_wait, compute), found, evidence, remedy)

    def apply(self, setup: Setup, case: Case) -> Setup | None:  # noqa: ARG002
        if _is_ahead(setup) or not getattr(setup.batches, "async_supported", True):
            return None
        return setup.loading(AsyncIterator(setup.batches))


def _is_ahead(setup: Setup) -> bool:
    """Return True if the iterator is known to load while the caller computes."""
    batches = setup.batches
    if isinstance(batches, AsyncIterator):
        return batches.prefetch_size > 0
    return getattr(batches, "num_workers", 0) > 0  # torch's DataLoader


def _takes_turns(setup: Setup) -> bool:
    """Return True if an iterator that is not known to load ahead is known not to; wrappers of loaders may."""
    batches = setup.batches
    return isinstance(batches, (AsyncIterator, IndexedIterator)) or getattr(batches, "num_workers", None) == 0
