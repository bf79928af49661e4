"""A memory budget in place of a number of batches."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import etl

NOTHING = etl.Pipeline([])
LIMIT_SECONDS = 20
# Only what goes wrong is waited for: a test that passes spends this time once.
TOO_FAR_SECONDS = 0.1
RECORD_NBYTES = 1000 * 4


class Watched(list[Any]):
    """Twelve records of 1,000 float32 that tell when each is begun."""

    def __init__(self) -> None:
        super().__init__({"features": np.full(1000, number, np.float32)} for number in range(12))
        self.begun = threading.Semaphore(0)

    def __getitem__(self, index: Any) -> Any:
        self.begun.release()
        return super().__getitem__(index)


def make(records: Any, memory_budget: int) -> etl.AsyncIterator:
    return etl.AsyncIterator(etl.RawIterator(records, NOTHING, 1), memory_budget=memory_budget, threads=1)


@pytest.mark.parametrize(("batches", "ahead"), [(2, 1), (2.9, 1), (4, 3)])
def test_as_many_batches_are_loaded_ahead_as_fit_beside_the_callers(batches: float, ahead: int) -> None:
    records = Watched()
    with make(records, int(batches * RECORD_NBYTES)) as iterator:
        epoch = iter(iterator)
        for taken in range(3):
            for _ in range(ahead if taken == 0 else 1):
                assert records.begun.acquire(timeout=LIMIT_SECONDS)
            assert not records.begun.acquire(timeout=TOO_FAR_SECONDS)
            assert next(epoch).features[0, 0] == taken


def test_batches_are_those_of_the_plain_iterator_in_every_epoch() -> None:
    iterator, plain = make(Watched(), 3 * RECORD_NBYTES), etl.RawIterator(Watched(), NOTHING, 1)
    for _ in range(2):
        found = [batch.features.tobytes() for batch in iterator]
        assert found == [batch.features.tobytes() for batch in plain]


def test_a_budget_below_two_batches_says_what_is_needed() -> None:
    iterator = make(Watched(), 2 * RECORD_NBYTES - 1)
    with pytest.raises(ValueError, match="memory_budget is 7,999 bytes and a batch 4,000; it must hold two"):
        iter(iterator)


def test_an_iterator_that_does_not_tell_the_size_of_batches_is_refused() -> None:
    class Own:
        async_supported = True
        epoch = 0

        def state_dict(self) -> dict[str, int]:
            return {}

    own: Any = Own()
    with pytest.raises(ValueError, match="the size of batches, which Own does not tell; use prefetch_size"):
        etl.AsyncIterator(own, memory_budget=1000)


def test_the_next_epoch_reuses_the_memory_of_all_batches_in_the_budget() -> None:
    allocated: list[int] = []

    def allocate(nbytes: int) -> np.ndarray:
        allocated.append(nbytes)
        return np.empty(nbytes, np.uint8)

    records = Watched()
    with make(records, 8 * RECORD_NBYTES) as iterator:
        iterator.allocate_with(allocate)
        for _ in range(2):
            epoch = iter(iterator)
            next(epoch)
            for _ in range(8):
                assert records.begun.acquire(timeout=LIMIT_SECONDS)
            del epoch
            assert len(allocated) <= 9  # and one for the record that told how large batches are
