"""Step 5: is the batch large enough to keep the hardware busy?"""

from __future__ import annotations

import resource
import time

from etl.doctor.check import Case, Check
from etl.doctor.finding import Finding, Severity
from etl.doctor.rebatched import Rebatched, repeated
from etl.doctor.setup import Setup
from etl.doctor.steps import time_compute
from etl.loading.batch import Batch
from etl.runtime.resources import available_nbytes

# "Minibatch sizes of 32 to 128 are commonly used" (the documents' step 5); above the last, convergence may suffer.
LEAST, MOST = 32, 1000
TRIAL_SECONDS = 0.5
LONGEST_STEP_SECONDS = 0.5


class BatchSize(Check):
    """What a larger batch would save, measured on a batch that is the given one several times."""

    name = "batch_size"
    title = "Batch size"
    why = "every operation has a cost of its own, which a larger batch shares among more records"

    def look(self, case: Case) -> Finding:
        if case.setup is None or case.seen is None:
            return self.not_looked_at()
        seen, size = case.seen, len(case.seen.batch)
        if size > MOST:
            return self.wrong(
                Severity.NOTE,
                f"batches of {size:,} records, more than {MOST:,}",
                "the first axis of a batch",
                "see that the loss falls as fast as with smaller ones",
            )
        if size >= LEAST:
            return self.fine(f"batches of {size} records", f"{LEAST} to 128 are usual")
        factor = case.notes[self.name] = _factor(case.setup, seen.batch)
        if factor == 1:
            return self.not_looked_at(f"a larger batch than {size} would take too long or too much memory to be tried")
        small, large = time_compute((case.setup, case.setup), (seen.batch, repeated(seen.batch, factor)), TRIAL_SECONDS)
        evidence = (
            f"a training step takes {small * 1e3:.2f} ms, and with {factor} times the records {large * 1e3:.2f} ms, so "
            f"{large / factor / small:.2f} times as long for each of them (medians, in turns)"
        )
        return self.slower(
            case,
            seen,
            small - large / factor,
            f"batches of {size} record{'s' if size > 1 else ''}",
            evidence,
            f"batch_size={LEAST} to 128, where memory allows; the learning rate may have to grow with it",
            least=Severity.WARNING if size == 1 else Severity.FINE,
        )

    def apply(self, setup: Setup, case: Case) -> Setup:
        return setup.loading(Rebatched(setup.batches, case.notes[self.name]))


def _factor(setup: Setup, batch: Batch) -> int:
    """How many times as large a batch is tried: until it has `LEAST` records, as long as a step is short and leaves
    most of the memory free.
    """
    factor, step = 1, setup.make_step()
    step(batch)
    while factor * len(batch) < LEAST:
        available, peak = available_nbytes(), _peak_nbytes()
        started = time.perf_counter()
        step(repeated(batch, 2 * factor))
        seconds, grown = time.perf_counter() - started, _peak_nbytes() - peak
        if seconds > LONGEST_STEP_SECONDS or grown > available / 4:
            break
        factor *= 2
    return factor


def _peak_nbytes() -> int:
    """Bytes that were resident at the peak of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
