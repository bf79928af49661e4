"""Step 5: is the batch large enough to keep the hardware busy, and would a larger one be faster?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from etl.doctor.check import STEP_WITH_RANKS, Case, Check, Finding, Severity
from etl.doctor.setup import Setup
from etl.doctor.steps import time_compute
from etl.loading.batch import Batch, as_batch
from etl.measuring.arrays import copy_of
from etl.measuring.noise import least_seconds
from etl.measuring.process_tree import PeakMemory
from etl.measuring.structure import describe, leaves_in, record_count
from etl.runtime.resources import available_nbytes
from etl.units import counted

# "Minibatch sizes of 32 to 128 are commonly used" (the guide's step 5). Above some 1,000, convergence may suffer.
MIN_RECORDS, USUAL_RECORDS, MAX_RECORDS = 32, 128, 1024
MAX_STEP_SECONDS = 0.5
# Throughput has ended if twice the records save less than this share of the time of a record.
MIN_GAIN = 0.05
# Batches of the usual sizes are only said to be small if a larger one saves this share.
MIN_SAVING = 0.2
LEARNING_RATE = "the learning rate may have to grow with it"
ARRAYS = (np.ndarray, torch.Tensor)


@dataclass(frozen=True)
class Growth:
    """The largest batch worth trying, of `factor` times the records of the present one, and why no larger one is."""

    factor: int
    end: str


class BatchSize(Check):
    """A check that the batch is not too small.

    Its records are repeated to make larger ones, each twice as large, until memory or throughput ends. The best of them
    is then timed against the batch itself.
    """

    name = "batch_size"
    title = "Batch size"
    why = "every operation has a fixed cost, which a larger batch spreads over more records"

    def look(self, case: Case) -> Finding:
        if case.setup is None or case.observation is None:
            return self.not_looked_at()
        batch = case.observation.batch
        size = record_count(batch)
        is_usual = size >= MIN_RECORDS
        if size > MAX_RECORDS:
            return self.wrong(
                Severity.NOTE,
                f"batches of {size:,} records, more than {MAX_RECORDS:,}",
                "the first axis of a batch",
                "check that the loss falls as fast as with smaller batches",
            )
        found = f"batches of {counted(size, 'record', 'records')}"
        usual = f"{MIN_RECORDS} to {USUAL_RECORDS} are usual"
        reason = self._why_not_larger(case, batch, is_usual)
        growth = Growth(1, reason) if reason else _grow(case.setup, batch, MAX_RECORDS if is_usual else USUAL_RECORDS)
        if growth.factor == 1:
            return self.fine(found, f"{usual}; {growth.end}") if is_usual else self.not_looked_at(growth.end)
        factor = case.notes[self.name] = growth.factor
        small, large = time_compute((case.setup, case.setup), (batch, _repeated(batch, factor)))
        ratio = large / factor / small
        evidence = (
            f"a training step takes {small * 1e3:.2f} ms, and {large * 1e3:.2f} ms with {factor} times the records: "
            f"{ratio:.2f} times as long for each record (medians, in turns); {growth.end}"
        )
        if not is_usual:
            return self.slower(
                case,
                case.observation,
                case.observation.times.saved(small, large / factor),
                found,
                evidence,
                f"batch_size={MIN_RECORDS} to {USUAL_RECORDS}, if memory allows; {LEARNING_RATE}",
                min_severity=Severity.WARNING if size == 1 else Severity.FINE,
            )
        if ratio > 1 - MIN_SAVING:
            return self.fine(found, f"{usual}; {evidence}")
        # Fewer and larger steps may not learn as much in an epoch, so no saving is promised.
        suggestion = self.wrong(
            Severity.NOTE,
            f"{found} are computed slower than larger ones",
            evidence,
            f"try batch_size={factor * size}, and check that the loss falls as fast; {LEARNING_RATE}",
        )
        return replace(suggestion, is_suggestion=True)

    def _why_not_larger(self, case: Case, batch: Any, is_usual: bool) -> str:
        """Return the reason why no larger batches can be tried; an empty string if they can."""
        if case.waits_for_ranks:
            return f"larger batches are not tried: {STEP_WITH_RANKS}"
        if not _can_be_joined(batch):
            return f"larger batches cannot be made of {describe(batch)}"
        if is_usual and case.of_model is None:
            return "larger batches are not tried with a step of your own, which would learn from repeated records"
        return ""

    def apply(self, setup: Setup, case: Case) -> Setup:
        return setup.loading(Rebatched(setup.batches, case.notes[self.name], setup.accept))


class Rebatched:
    """An iterable of batches that each join `factor` consecutive batches of another iterable; the last may join fewer.

    Batches are joined in the form in which `accept` returns them.
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


def _grow(setup: Setup, batch: Any, max_records: int) -> Growth:
    """Double `batch` until memory, time or throughput ends; up to `MIN_RECORDS` records, throughput does not count."""
    factor, step = 1, setup.make_step()
    size = record_count(batch)
    try:
        step(batch)
        seconds = _seconds_of(step, batch)
        while 2 * factor * size <= max_records:
            larger = _repeated(batch, 2 * factor)
            if _is_too_large(step, larger):
                return Growth(factor, "a step with twice as many records takes more than a quarter of the free memory")
            doubled = _seconds_of(step, larger)
            if doubled > 2 * (1 - MIN_GAIN) * seconds and 2 * factor * size > MIN_RECORDS:
                return Growth(factor, "a record takes as long in batches of twice as many")
            factor, seconds = 2 * factor, doubled
            if seconds > MAX_STEP_SECONDS:
                return Growth(factor, f"a step takes more than {MAX_STEP_SECONDS} s")
    except torch.cuda.OutOfMemoryError:
        return Growth(factor, "the device has too little memory for twice as many records")
    except Exception as error:  # noqa: BLE001 - with batches of the given size, this training has just run
        return Growth(factor, f"batches of more than {factor * size} fail: {type(error).__name__}: {error}")
    finally:
        if setup.device.type == "cuda":
            torch.cuda.empty_cache()  # what large batches needed is left to others
    return Growth(factor, f"batches of more than {max_records:,} records are not usual")


def _is_too_large(step: Callable[[Any], None], batch: Any) -> bool:
    """Train on `batch` for the first time, and return True if that takes more than a quarter of the free memory."""
    available, before = available_nbytes(), PeakMemory()
    before.look()
    with PeakMemory() as during:
        step(batch)
    return during.nbytes - before.nbytes > available / 4


def _seconds_of(step: Callable[[Any], None], batch: Any) -> float:
    return least_seconds(lambda: step(batch), tries=2)


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
