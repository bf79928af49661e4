"""Step 5: is the batch large enough to keep the hardware busy?"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from etl.doctor.check import Case, Check, Finding, Severity
from etl.doctor.setup import Setup, copy_batch
from etl.doctor.steps import time_compute
from etl.loading.batch import Batch, as_batch
from etl.runtime.resources import available_nbytes

# "Minibatch sizes of 32 to 128 are commonly used" (the guide's step 5). Above 1,000, convergence may suffer.
MIN_RECORDS, MAX_RECORDS = 32, 1000
TRIAL_SECONDS = 0.5
MAX_STEP_SECONDS = 0.5


class BatchSize(Check):
    """A check that the batch is not too small: a small one is timed against a larger one that repeats its records."""

    name = "batch_size"
    title = "Batch size"
    why = "every operation has a fixed cost, which a larger batch spreads over more records"

    def look(self, case: Case) -> Finding:
        if case.setup is None or case.observation is None:
            return self.not_looked_at()
        batch = case.observation.batch
        size = len(batch)
        if size > MAX_RECORDS:
            return self.wrong(
                Severity.NOTE,
                f"batches of {size:,} records, more than {MAX_RECORDS:,}",
                "the first axis of a batch",
                "check that the loss falls as fast as with smaller batches",
            )
        if size >= MIN_RECORDS:
            return self.fine(f"batches of {size} records", f"{MIN_RECORDS} to 128 are usual")
        factor = case.notes[self.name] = _find_factor(case.setup, batch)
        if factor == 1:
            return self.not_looked_at(f"trying batches of more than {size} would take too much time or memory")
        small, large = time_compute((case.setup, case.setup), (batch, _repeated(batch, factor)), TRIAL_SECONDS)
        evidence = (
            f"a training step takes {small * 1e3:.2f} ms, and {large * 1e3:.2f} ms with {factor} times the records: "
            f"{large / factor / small:.2f} times as long for each record (medians, in turns)"
        )
        return self.slower(
            case,
            case.observation,
            small - large / factor,
            f"batches of {size} record{'s' if size > 1 else ''}",
            evidence,
            f"batch_size={MIN_RECORDS} to 128, if memory allows; the learning rate may have to grow with it",
            min_severity=Severity.WARNING if size == 1 else Severity.FINE,
        )

    def apply(self, setup: Setup, case: Case) -> Setup:
        return setup.loading(Rebatched(setup.batches, case.notes[self.name]))


class Rebatched:
    """An iterable of batches that each join `factor` consecutive batches of another iterable; the last may join fewer.

    Parameters
    ----------
    batches : iterable of batches
        The other iterable.
    factor : int
        Number of batches to join.
    """

    def __init__(self, batches: Iterable[Any], factor: int) -> None:
        self._batches = batches
        self.factor = factor

    def __len__(self) -> int:
        return -(-len(self._batches) // self.factor)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        waiting: list[Batch] = []
        for item in self._batches:
            waiting.append(copy_batch(as_batch(item)))  # the iterator may reuse its memory
            if len(waiting) == self.factor:
                yield _joined(waiting)
                waiting = []
        if waiting:
            yield _joined(waiting)


def _find_factor(setup: Setup, batch: Batch) -> int:
    """Return how many copies of `batch` to try as one batch: the power of two that gives `MIN_RECORDS` records or more.

    A smaller power is returned if a step would take too long, or more than a quarter of the free memory.
    """
    factor, step = 1, setup.make_step()
    step(batch)
    while factor * len(batch) < MIN_RECORDS:
        available, peak = available_nbytes(), _peak_nbytes()
        started = time.perf_counter()
        step(_repeated(batch, 2 * factor))
        seconds, growth = time.perf_counter() - started, _peak_nbytes() - peak
        if seconds > MAX_STEP_SECONDS or growth > available / 4:
            break
        factor *= 2
    return factor


def _peak_nbytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _repeated(batch: Batch, times: int) -> Batch:
    return _joined([batch] * times)


def _joined(batches: Sequence[Batch]) -> Batch:
    """Return one batch with the records of all `batches`, without the marks of `Batch.repeated`."""
    return Batch(
        *(
            _concatenated([getattr(batch, name) for batch in batches])
            for name in ("features", "labels", "features_mask", "labels_mask")
        )
    )


def _concatenated(parts: list[Any]) -> Any:
    if parts[0] is None:
        return None
    if isinstance(parts[0], tuple):
        return tuple(_concatenated([part[index] for part in parts]) for index in range(len(parts[0])))
    return torch.cat(parts) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts)
