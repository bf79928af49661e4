"""Step 5: is the batch large enough to keep the hardware busy?"""

from __future__ import annotations

import copy
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from etl.doctor.check import STEP_WITH_RANKS, Case, Check, Finding, Severity
from etl.doctor.setup import Setup
from etl.doctor.steps import time_compute
from etl.loading.batch import Batch, as_batch
from etl.measuring.arrays import copy_of
from etl.measuring.structure import describe, leaves_in, record_count
from etl.runtime.resources import available_nbytes

# "Minibatch sizes of 32 to 128 are commonly used" (the guide's step 5). Above 1,000, convergence may suffer.
MIN_RECORDS, MAX_RECORDS = 32, 1000
TRIAL_SECONDS = 0.5
MAX_STEP_SECONDS = 0.5
ARRAYS = (np.ndarray, torch.Tensor)


class BatchSize(Check):
    """A check that the batch is not too small: a small one is timed against a larger one that repeats its records."""

    name = "batch_size"
    title = "Batch size"
    why = "every operation has a fixed cost, which a larger batch spreads over more records"

    def look(self, case: Case) -> Finding:
        if case.setup is None or case.observation is None:
            return self.not_looked_at()
        batch = case.observation.batch
        size = record_count(batch)
        if size > MAX_RECORDS:
            return self.wrong(
                Severity.NOTE,
                f"batches of {size:,} records, more than {MAX_RECORDS:,}",
                "the first axis of a batch",
                "check that the loss falls as fast as with smaller batches",
            )
        if size >= MIN_RECORDS:
            return self.fine(f"batches of {size} records", f"{MIN_RECORDS} to 128 are usual")
        if case.waits_for_ranks:
            return self.not_looked_at(f"batches of {size} records, and larger ones are not tried: {STEP_WITH_RANKS}")
        if not _can_be_joined(batch):
            return self.not_looked_at(f"larger batches cannot be made of {describe(batch)}")
        try:
            factor = case.notes[self.name] = _find_factor(case.setup, batch)
        except Exception as error:  # noqa: BLE001 - with batches of this size, this training has just run
            return self.not_looked_at(f"batches of more than {size} fail: {type(error).__name__}: {error}")
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
        return setup.loading(Rebatched(setup.batches, case.notes[self.name], setup.accept))


class Rebatched:
    """An iterable of batches that each join `factor` consecutive batches of another iterable; the last may join fewer.

    Parameters
    ----------
    batches : iterable of batches
        The other iterable.
    factor : int
        Number of batches to join.
    accept : callable
        Returns an item of `batches` in the form that training takes.
    """

    def __init__(self, batches: Iterable[Any], factor: int, accept: Callable[[Any], Any] = as_batch) -> None:
        self._batches = batches
        self.factor = factor
        self._accept = accept

    def __len__(self) -> int:
        return -(-len(self._batches) // self.factor)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        waiting: list[Any] = []
        for item in self._batches:
            waiting.append(copy_of(self._accept(item)))  # the iterator may reuse its memory
            if len(waiting) == self.factor:
                yield _joined(waiting)
                waiting = []
        if waiting:
            yield _joined(waiting)


def _find_factor(setup: Setup, batch: Any) -> int:
    """Return how many copies of `batch` to try as one batch: the power of two that gives `MIN_RECORDS` records or more.

    A smaller power is returned if a step would take too long, or more than a quarter of the free memory.
    """
    factor, step = 1, setup.make_step()
    step(batch)
    size = record_count(batch)
    while factor * size < MIN_RECORDS:
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


def _repeated(batch: Any, times: int) -> Any:
    return _joined([batch] * times)


def _can_be_joined(batch: Any) -> bool:
    """Return True if `batch` is made of arrays and tensors whose first axis counts records, and of nothing else."""
    size = record_count(batch)
    return all(isinstance(each, ARRAYS) and each.shape[:1] == (size,) for each in leaves_in(batch))


def _joined(batches: Sequence[Any]) -> Any:
    """Return one batch with the records of all `batches`, without the marks of `Batch.repeated`."""
    whole = [replace(each, repeated=None) if isinstance(each, Batch) else each for each in batches]
    columns = zip(*map(leaves_in, whole), strict=True)
    # What `deepcopy` finds in its memo it does not copy itself: it rebuilds the containers around it.
    return copy.deepcopy(whole[0], {id(parts[0]): _concatenated(parts) for parts in columns})


def _concatenated(parts: Sequence[Any]) -> Any:
    return torch.cat(list(parts)) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts)
