"""Step 4: what does the garbage collector take?"""

from __future__ import annotations

from etl.doctor.check import Case, Check
from etl.doctor.finding import Finding, Severity
from etl.doctor.setup import Setup
from etl.runtime import GcPolicy

# Objects in memory, and what the documents ("Performance Issues", step 4) say of a JVM's collections with more of them.
# Python with torch has some hundred thousand before anything was done, of which nothing needs to be said.
GUIDE = (
    (10_000_000, Severity.SERIOUS, "a major bottleneck even if infrequent"),
    (500_000, Severity.WARNING, "a bottleneck if collections are frequent"),
    (100_000, Severity.FINE, "noticeable"),
)


class GarbageCollection(Check):
    """How long collections take, and how many objects they walk."""

    name = "garbage"
    title = "Garbage collection"
    why = "a full collection walks every container object that is alive, while nothing else runs in Python"

    def look(self, case: Case) -> Finding:
        if case.setup is None or case.seen is None:
            return self.not_looked_at()
        seen = case.seen
        count = sum(each.count for each in seen.collections)
        seconds = sum(each.seconds for each in seen.collections)
        least, guide = next(
            ((severity, text) for objects, severity, text in GUIDE if seen.tracked_objects >= objects),
            (Severity.FINE, "short"),
        )
        evidence = (
            f"gc.get_objects() has {seen.tracked_objects:,}; a full collection took "
            f"{seen.full_collection_seconds * 1e3:.1f} ms, and {count} collections {seconds * 1e3:.1f} ms of "
            f"{seen.count} batches"
        )
        found = f"{seen.tracked_objects:,} objects are walked by a full collection, which the rough guide calls {guide}"
        remedy = "once everything is loaded: etl.runtime.GcPolicy('freeze'), or etl.fit(..., gc='freeze')"
        return self.slower(case, seen, seconds / seen.count, found, evidence, remedy, least)

    def apply(self, setup: Setup, case: Case) -> Setup:  # noqa: ARG002
        return setup.within(lambda: GcPolicy("freeze"))
