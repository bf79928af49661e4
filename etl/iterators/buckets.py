"""Batches of similar lengths: records sorted by length within windows of the epoch's order."""

from __future__ import annotations

import numpy as np


def sort_in_windows(
    order: np.ndarray,
    lengths: np.ndarray,
    step_records: int,
    window_records: int,
    random: np.random.Generator | None,
) -> None:
    """Sort windows of `order`, int64 of record numbers, in place by `lengths[number]`, and shuffle the steps of each.

    A window has as many whole steps as fit into `window_records`, at least one. What is left of the epoch after the
    last whole step stays at its end: which records those are is not decided by their length. Without `random` the
    steps of a window stay sorted.
    """
    whole = len(order) - len(order) % step_records
    size = max(1, window_records // step_records) * step_records
    for first in range(0, whole, size):
        window = order[first : min(first + size, whole)]
        steps = window[np.argsort(lengths[window], kind="stable")].reshape(-1, step_records)
        if random is not None:
            random.shuffle(steps)
        window[:] = steps.reshape(-1)
