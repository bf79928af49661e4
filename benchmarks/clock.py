"""The clock: the loop in which every figure is taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

PAGE_NBYTES = 4096


@dataclass(frozen=True)
class EpochTimes:
    """Seconds of one epoch. `wall` is all of it; `stall` the waits for a batch until it could be read at memory speed,
    the start of the iterator and its end included; `compute` the training steps. What is left, wall - stall - compute,
    is the loop itself.
    """

    wall: float
    stall: float
    compute: float
    batches: int
    samples: int


def run_epoch(iterator: Any, compute: Callable[[Any], None] | None) -> EpochTimes:
    """Run one epoch of `iterator` through `compute` (None: load only), and time it.

    `compute` must return only when it is done. Each batch is touched, one byte of every page, inside the time of
    loading: a batch that is only mapped has not been loaded.
    """
    now = time.perf_counter
    stall = busy = 0.0
    batches = samples = 0
    started = asked = now()
    source = iter(iterator)
    while True:
        batch = next(source, None)
        if batch is None:
            break
        touch(batch)
        loaded = now()
        stall += loaded - asked
        batches += 1
        samples += len(batch)
        if compute is not None:
            began = now()
            compute(batch)
            busy += now() - began
        # The batch is let go inside the loop's own time, as a training script does when it takes the next.
        del batch
        asked = now()
    ended = now()
    return EpochTimes(ended - started, stall + ended - asked, busy, batches, samples)


def touch(batch: Any) -> int:
    """Read a byte of every page of every array of `batch`; their sum, so that nothing is optimised away."""
    total = 0
    for array in batch.arrays():
        content = as_bytes(array)
        # An array that begins within a page may end in one more than its length tells.
        total += int(content[::PAGE_NBYTES].sum(dtype=np.int64)) + int(content[-1:].sum(dtype=np.int64))
    return total


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of `array`, uint8 of shape `(nbytes,)`; a view where it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
