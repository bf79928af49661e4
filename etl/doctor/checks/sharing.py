"""Step 6: is one model used from several threads?"""

from __future__ import annotations

from etl.doctor.check import Case, Check
from etl.doctor.finding import Finding, Severity


class SharedModel(Check):
    """Which threads call the model's modules while it is examined."""

    name = "sharing"
    title = "One model used from several threads"
    why = (
        "a module keeps state while it runs (gradients, running means, hooks): calls from several threads mix theirs, "
        "or wait for each other"
    )

    def look(self, case: Case) -> Finding:
        if case.seen is None:
            return self.not_looked_at()
        shared = {name: len(threads) for name, threads in case.seen.callers.items() if len(threads) > 1}
        evidence = (
            f"a hook on each of {len(case.seen.callers)} modules that were called, while {case.seen.count} batches "
            "were trained on"
        )
        if not shared:
            return self.fine("one thread calls the model", evidence)
        name, threads = max(shared.items(), key=lambda each: each[1])
        return self.wrong(
            Severity.SERIOUS,
            f"{threads} threads call {f'module {name}' if name else 'the model'}",
            evidence,
            "give each thread a model of its own (copy.deepcopy), or have one thread compute batches for all",
        )
