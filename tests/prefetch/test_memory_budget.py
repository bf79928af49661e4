"""A memory budget in place of a number of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import etl
from tests.watched_records import LIMIT_SECONDS, Watched

NOTHING = etl.Pipeline([])
RECORD_NBYTES = 1000 * 4 + 8


def watched() -> Watched:
    return Watched(12, width=1000)


def make(records: Any, memory_budget: int) -> etl.AsyncIterator:
    return etl.AsyncIterator(etl.RawIterator(records, NOTHING, 1), memory_budget=memory_budget, threads=1)


@pytest.mark.parametrize(("batches", "ahead"), [(2, 1), (2.9, 1), (4, 3)])
def test_as_many_batches_are_loaded_ahead_as_fit_beside_the_callers(batches: float, ahead: int) -> None:
    records = watched()
    with make(records, int(batches * RECORD_NBYTES)) as iterator:
        epoch = iter(iterator)
        for taken in range(3):
            records.assert_begun(ahead if taken == 0 else 1)
            assert next(epoch).features[0, 0] == taken


def test_batches_are_those_of_the_plain_iterator_in_every_epoch() -> None:
    iterator, plain = make(watched(), 3 * RECORD_NBYTES), etl.RawIterator(watched(), NOTHING, 1)
    for _ in range(2):
        found = [batch.features.tobytes() for batch in iterator]
        assert found == [batch.features.tobytes() for batch in plain]


def test_a_budget_below_two_batches_says_what_is_needed() -> None:
    iterator = make(watched(), 2 * RECORD_NBYTES - 1)
    with pytest.raises(ValueError, match="memory_budget is 8,015 bytes and a batch 4,008; it must hold two"):
        next(iter(iterator))


def test_the_next_epoch_reuses_the_memory_of_all_batches_in_the_budget() -> None:
    allocated: list[int] = []

    def allocate(nbytes: int) -> np.ndarray:
        allocated.append(nbytes)
        return np.empty(nbytes, np.uint8)

    records = watched()
    with make(records, 8 * RECORD_NBYTES) as iterator:
        iterator.allocate_with(allocate)
        for _ in range(2):
            epoch = iter(iterator)
            next(epoch)
            for _ in range(8):
                assert records.begun.acquire(timeout=LIMIT_SECONDS)
            del epoch
            # One for the record that told how large batches are. Labels take 8 bytes.
            assert sum(nbytes > 8 for nbytes in allocated) <= 9
