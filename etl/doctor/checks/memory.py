"""Steps 4 and 8: what do garbage collections and fresh memory cost?"""

from __future__ import annotations

import mmap
import resource
import time

import numpy as np

from etl.doctor.check import Case, Check, Finding, Severity
from etl.doctor.setup import Setup
from etl.runtime import GcPolicy, HeapPolicy

# Objects in memory, and what the documents ("Performance Issues", step 4) say of a JVM's collections with more of them.
# Python with torch has some hundred thousand before a program does anything, which is not worth a warning.
GUIDE = (
    (10_000_000, Severity.SERIOUS, "a major bottleneck even if infrequent"),
    (500_000, Severity.WARNING, "a bottleneck if collections are frequent"),
    (100_000, Severity.FINE, "noticeable"),
)
PAGE_NBYTES = resource.getpagesize()
# With page faults for less than this share of a batch's pages, the batch itself is not fresh memory.
MIN_FRESH_SHARE = 0.25
MIN_FAULTS = 16
PROBE_PAGES = 4096


class GarbageCollection(Check):
    """A check of the duration of garbage collections, and of the number of objects that they walk."""

    name = "garbage"
    title = "Garbage collection"
    why = "a full collection walks every container object that is alive, while no other Python code runs"

    def look(self, case: Case) -> Finding:
        if case.setup is None or case.observation is None:
            return self.not_looked_at()
        observation = case.observation
        count = sum(each.count for each in observation.collections)
        seconds = sum(each.seconds for each in observation.collections)
        objects = observation.tracked_objects
        min_severity, guide = next(
            ((severity, text) for guided, severity, text in GUIDE if objects >= guided), (Severity.FINE, "short")
        )
        evidence = (
            f"gc.get_objects() has {objects:,}; a full collection took "
            f"{observation.full_collection_seconds * 1e3:.1f} ms, and {count} collections in {observation.count} "
            f"batches took {seconds * 1e3:.1f} ms"
        )
        found = f"a full collection walks {objects:,} objects, which the rough guide calls {guide}"
        remedy = "once everything is loaded: etl.runtime.GcPolicy('freeze'), or etl.fit(..., gc='freeze')"
        return self.slower(case, observation, seconds / observation.count, found, evidence, remedy, min_severity)

    def apply(self, setup: Setup, case: Case) -> Setup:  # noqa: ARG002
        return setup.within(lambda: GcPolicy("freeze"))


class MemoryReuse(Check):
    """A count of the pages that the system gives this process for every batch."""

    name = "memory_reuse"
    title = "Memory reused from batch to batch"
    why = (
        "the system clears every page before a process first touches it: filling fresh memory costs more than twice as "
        "much"
    )

    def look(self, case: Case) -> Finding:
        if case.observation is None:
            return self.not_looked_at()
        observation = case.observation
        pages = max(1.0, observation.batch.nbytes / PAGE_NBYTES)
        faults = observation.faults
        fault_seconds = _fault_seconds()
        evidence = (
            f"{faults:,.0f} minor page faults a batch (getrusage, median of {observation.count}); a batch has "
            f"{pages:,.0f} pages; a fault takes {fault_seconds * 1e6:.2f} microseconds here"
        )
        if faults < MIN_FRESH_SHARE * pages or faults < MIN_FAULTS:
            return self.fine("memory is reused", evidence)
        return self.slower(
            case,
            observation,
            faults * fault_seconds,
            f"{faults * PAGE_NBYTES / 1e6:,.1f} MB of fresh memory are touched for every batch",
            evidence,
            "let iterators reuse batches (reuse=True, the default), and keep freed memory in the process: "
            "etl.runtime.HeapPolicy('retain'), or etl.fit(..., heap='retain')",
        )

    def apply(self, setup: Setup, case: Case) -> Setup:  # noqa: ARG002
        return setup.within(lambda: HeapPolicy("retain"))


def _fault_seconds() -> float:
    """Return how much longer it takes to touch a fresh page than to touch it again."""
    times = []
    memory = mmap.mmap(-1, PROBE_PAGES * PAGE_NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = np.frombuffer(memory, np.uint8)
    for _ in range(2):
        started = time.perf_counter()
        view[::PAGE_NBYTES] = 1
        times.append(time.perf_counter() - started)
    del view
    memory.close()
    return max(0.0, times[0] - times[1]) / PROBE_PAGES
