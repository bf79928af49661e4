"""Steps 4 and 8: how much time do garbage collections and fresh memory cost?"""

from __future__ import annotations

import mmap
import time

import numpy as np

from etl.doctor.check import Case, Check, Finding, Severity, heaviest_first
from etl.doctor.observation import DeviceMemory, Observation
from etl.doctor.setup import Setup
from etl.measuring.arrays import views_in
from etl.runtime import DeviceMemoryPolicy, GcPolicy, HeapPolicy

# Minimum number of objects in memory, and what Deeplearning4j's guide ("Performance Issues", step 4) says about a JVM's
# collections with so many. Python with torch has some hundred thousand objects before a program does anything, which is
# not worth a warning.
GUIDE = (
    (10_000_000, Severity.SERIOUS, "a major bottleneck even if infrequent"),
    (500_000, Severity.WARNING, "a bottleneck if collections are frequent"),
    (100_000, Severity.FINE, "noticeable"),
)
# If there are fewer page faults than this share of a batch's pages, the batch itself is not in fresh memory.
MIN_FRESH_SHARE = 0.25
MIN_FAULTS = 16
PROBE_PAGES, PROBES = 4096, 5
# The setting that keeps device memory from being fragmented.
EXPANDABLE = "expandable_segments:True"
# Shares of the device memory that the allocator holds.
UNUSABLE_WARNING, UNUSABLE_NOTE = 0.25, 0.10
MIN_UNUSABLE_NBYTES = 100_000_000
# New segments in a batch, beyond which memory is said to be taken afresh.
MAX_NEW_SEGMENTS = 0.5


class GarbageCollection(Check):
    """A check that garbage collections take little time, and walk few objects."""

    name = "garbage"
    title = "Garbage collection"
    why = "a full collection visits every live container object, and no other Python code runs meanwhile"

    def look(self, case: Case) -> Finding:
        observation = case.observation
        if observation is None:
            return self.not_looked_at()
        count = sum(each.count for each in observation.collections)
        seconds = sum(each.seconds for each in observation.collections)
        objects = observation.tracked_objects
        min_severity, guide = next(
            ((severity, text) for guided, severity, text in GUIDE if objects >= guided), (Severity.FINE, "short")
        )
        evidence = (
            f"gc.get_objects() returns {objects:,}; a full collection took "
            f"{observation.full_collection_seconds * 1e3:.1f} ms, and {count} collections in {observation.count} "
            f"batches took {seconds * 1e3:.1f} ms"
        )
        found = f"a full collection visits {objects:,} objects, which Deeplearning4j's rough guide calls {guide}"
        remedy = (
            "freeze objects once everything is loaded: etl.runtime.GcPolicy('freeze'), or etl.fit(..., gc='freeze')"
        )
        return self.slower(case, observation, seconds / observation.count, found, evidence, remedy, min_severity)

    def apply(self, setup: Setup, case: Case) -> Setup:  # noqa: ARG002
        return setup.within(lambda: GcPolicy("freeze"))


class MemoryReuse(Check):
    """A check that batches reuse memory: the system gives few new pages, and the driver few new segments, per batch."""

    name = "memory_reuse"
    title = "Memory reused from batch to batch"
    why = (
        "the system clears every page when a process first touches it: filling fresh memory takes more than twice as "
        "long as filling memory again"
    )

    def look(self, case: Case) -> Finding:
        if case.observation is None:
            return self.not_looked_at()
        on_host = self._of_host(case, case.observation)
        if case.observation.device_memory is None:
            return on_host
        on_device = self._of_device(case.observation.device_memory, case.observation.count)
        heavier, lighter = heaviest_first(on_device, on_host)
        case.notes[self.name] = int(heavier is on_device)
        return heavier.beside(lighter)

    def _of_device(self, memory: DeviceMemory, batches: int) -> Finding:
        """Return the finding for the memory of a CUDA device, over this number of batches."""
        unusable = memory.unusable_nbytes / max(1, memory.reserved_nbytes)
        evidence = (
            f"torch.cuda.memory_stats, over {batches} batches: {memory.retries} retries, {memory.new_segments} new "
            f"segments; {memory.reserved_nbytes / 1e6:,.0f} MB held, of which {memory.allocated_nbytes / 1e6:,.0f} MB "
            f"are tensors, and {unusable:.0%} free pieces that cannot be given back"
        )
        remedy = (
            f"etl.fit(..., device_memory='{EXPANDABLE}'), or PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}; "
            "batches of equal shapes need it least"
        )
        if memory.retries:
            return self.wrong(
                Severity.SERIOUS,
                f"device memory ran out {memory.retries} times, and each time all free memory was given back",
                evidence,
                f"smaller batches; or, if much is in pieces, {remedy}",
            )
        if memory.new_segments > MAX_NEW_SEGMENTS * batches:
            return self.wrong(
                Severity.WARNING, "device memory is taken from the driver again and again", evidence, remedy
            )
        if unusable >= UNUSABLE_NOTE and memory.unusable_nbytes >= MIN_UNUSABLE_NBYTES:
            severity = Severity.WARNING if unusable >= UNUSABLE_WARNING else Severity.NOTE
            return self.wrong(severity, "device memory is fragmented", evidence, remedy)
        return self.fine("device memory is reused", evidence)

    def _of_host(self, case: Case, observation: Observation) -> Finding:
        pages = max(1.0, sum(each.nbytes for each in views_in(observation.batch)) / mmap.PAGESIZE)
        faults = observation.faults
        fault_seconds = _fault_seconds()
        evidence = (
            f"{faults:,.0f} minor page faults per batch (getrusage, median of {observation.count}); a batch has "
            f"{pages:,.0f} pages; a fault takes {fault_seconds * 1e6:.2f} microseconds here"
        )
        if faults < MIN_FRESH_SHARE * pages or faults < MIN_FAULTS:
            return self.fine("memory is reused", evidence)
        return self.slower(
            case,
            observation,
            faults * fault_seconds,
            f"{faults * mmap.PAGESIZE / 1e6:,.1f} MB of fresh memory are touched for every batch",
            evidence,
            "let iterators reuse batches (reuse=True, the default), and keep freed memory in the process: "
            "etl.runtime.HeapPolicy('retain'), or etl.fit(..., heap='retain')",
        )

    def apply(self, setup: Setup, case: Case) -> Setup:
        if case.notes.get(self.name):
            return setup.within(lambda: DeviceMemoryPolicy(EXPANDABLE, setup.device))
        return setup.within(lambda: HeapPolicy("retain"))


def _fault_seconds() -> float:
    """Return by how many seconds the first touch of a page takes longer than the second, each at its quickest."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(PROBES):
        memory = mmap.mmap(-1, PROBE_PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        view = np.frombuffer(memory, np.uint8)
        for taken in times:
            started = time.perf_counter()
            view[:: mmap.PAGESIZE] = 1
            taken.append(time.perf_counter() - started)
        del view
        memory.close()
    return max(0.0, min(times[0]) - min(times[1])) / PROBE_PAGES
