"""Step 13: are there as many threads as CPUs for them?"""

from __future__ import annotations

from etl.doctor.check import Case, Check
from etl.doctor.finding import Finding, Severity
from etl.doctor.setup import Setup
from etl.doctor.steps import time_compute
from etl.runtime import ThreadPolicy
from etl.runtime.thread_policy import pool_threads
from etl.training.backends.selection import import_torch

TRIAL_SECONDS = 0.5


class Threads(Check):
    """The threads that compute and those that load, beside the CPUs; and what other numbers would save."""

    name = "threads"
    title = "Threads"
    why = (
        "threads of one operation wait for each other: with more of them than CPUs each waits for one that is not "
        "running"
    )

    def look(self, case: Case) -> Finding:
        import_torch()
        pools = pool_threads()
        cpus, compute = case.machine.cpus, max(pools.values())
        loading = _loading(case)
        named = ", ".join(f"{name} {count}" for name, count in pools.items())
        set_by = ", ".join(f"{key}={value}" for key, value in case.machine.variables.items() if "THREADS" in key)
        evidence = f"{named}; {loading} that load; {cpus} CPUs for this process{f'; {set_by}' if set_by else ''}"
        better = max(1, cpus - loading)
        if compute <= better and (compute >= better or compute >= cpus):
            return self.fine(f"{compute} threads compute on {cpus} CPUs", evidence)
        found = f"{compute} threads compute{f' and {loading} load' if loading else ''} on {cpus} CPUs"
        remedy = f"etl.runtime.ThreadPolicy({better}), etl.fit(..., threads={better}), or OMP_NUM_THREADS={better}"
        least = Severity.WARNING if compute > cpus else Severity.FINE
        if case.setup is None or case.seen is None:
            return self.fine(found, evidence) if least is Severity.FINE else self.wrong(least, found, evidence, remedy)
        if case.setup.backend.device.type != "cpu" and compute <= cpus:
            return self.fine(found, f"{evidence}; compute is on {case.setup.backend.device}")
        batch = case.seen.batch
        now, then = time_compute((case.setup, self.apply(case.setup, case)), (batch, batch), TRIAL_SECONDS)
        evidence += f"; a training step takes {now * 1e3:.1f} ms, with {better} threads {then * 1e3:.1f} ms"
        return self.slower(case, case.seen, now - then, found, evidence, remedy, least)

    def apply(self, setup: Setup, case: Case) -> Setup:
        better = max(1, case.machine.cpus - _loading(case))
        return setup.within(lambda: ThreadPolicy(better))


def _loading(case: Case) -> int:
    """Threads or processes that load beside compute, as far as the iterator tells."""
    batches = None if case.setup is None else case.setup.batches
    return sum(getattr(batches, name, 0) or 0 for name in ("threads", "processes", "num_workers"))
