"""Step 8: is memory reused, or taken afresh for every batch?"""

from __future__ import annotations

import mmap
import resource
import time

import numpy as np

from etl.doctor.check import Case, Check
from etl.doctor.finding import Finding
from etl.doctor.setup import Setup
from etl.runtime import HeapPolicy

PAGE_NBYTES = resource.getpagesize()
# Below this share of a batch's pages, what is faulted in is not the batch.
FEW = 0.25
PROBE_PAGES = 4096


class MemoryReuse(Check):
    """How many pages the system has to give this process for every batch."""

    name = "memory_reuse"
    title = "Memory reused from batch to batch"
    why = (
        "the system clears a page before it gives it to a process, at the first touch: filling fresh memory costs more "
        "than twice as much"
    )

    def look(self, case: Case) -> Finding:
        if case.seen is None:
            return self.not_looked_at()
        seen = case.seen
        pages = max(1.0, seen.batch_nbytes / PAGE_NBYTES)
        each = _seconds_of_fault()
        evidence = (
            f"{seen.faults:,.0f} minor page faults a batch (getrusage, median of {seen.count}) of which a batch has "
            f"{pages:,.0f} pages; one takes {each * 1e6:.2f} microseconds here"
        )
        if seen.faults < FEW * pages or seen.faults < 16:
            return self.fine("memory is reused", evidence)
        return self.slower(
            case,
            seen,
            seen.faults * each,
            f"{seen.faults * PAGE_NBYTES / 1e6:,.1f} MB of fresh memory are touched for every batch",
            evidence,
            "let iterators reuse batches (reuse=True, the default), and keep freed memory in the process: "
            "etl.runtime.HeapPolicy('retain'), or etl.fit(..., heap='retain')",
        )

    def apply(self, setup: Setup, case: Case) -> Setup:  # noqa: ARG002
        return setup.within(lambda: HeapPolicy("retain"))


def _seconds_of_fault() -> float:
    """What touching a fresh page takes longer than touching it again."""
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
