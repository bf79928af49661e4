"""The memory of a batch is reused once nothing refers to the batch any more, and not before."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import etl
from etl.loading.buffer_pool import MIN_NBYTES, BufferPool
from etl.training.backends.tensors import as_tensor

WIDE = 10_000
RECORDS = [{"features": np.full(WIDE, number, np.float32), "label": number} for number in range(22)]


@pytest.fixture(autouse=True, scope="module")
def no_collector() -> Iterator[None]:
    """Memory comes back with the last reference; a cycle would have to wait for the collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def address(array: np.ndarray) -> int:
    place: int = array.__array_interface__["data"][0]
    return place


def lend(pool: BufferPool, count: int = 4, dtype: Any = np.float32) -> np.ndarray:
    return pool.empty(count, 4, (WIDE,), np.dtype(dtype))


# Each keeps something of an array and not the array.
KEEPERS = {
    "itself": lambda array: array,
    "a view": lambda array: array[1:3, ::2],
    "a view of a view": lambda array: array[0].reshape(100, -1)[3],
    "its bits": lambda array: array.view(np.uint8),
    "a tensor": torch.from_numpy,
    "a view of a tensor": lambda array: torch.from_numpy(array)[2].view(torch.int32),
    "a memoryview": memoryview,
    "a record of a tuple": lambda array: tuple(array)[1],
    "an array over its buffer": lambda array: np.frombuffer(memoryview(array).cast("B"), np.uint8),
    "a DLPack capsule": np.from_dlpack,
}


@pytest.mark.parametrize("kept_as", KEEPERS)
def test_memory_is_reused_once_the_last_reference_is_gone(kept_as: str) -> None:
    pool = BufferPool(reuse=True)
    array = lend(pool)
    place = address(array)
    kept = KEEPERS[kept_as](array)
    del array
    another = lend(pool)
    assert address(another) != place
    del kept
    again = lend(pool)
    assert address(again) == place


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64"])
def test_an_array_has_the_dtype_is_writable_and_takes_the_memory_of_a_larger_one(dtype: str) -> None:
    pool = BufferPool(reuse=True)
    wanted = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    places = set()
    for count in (4, 3, 1):
        array = lend(pool, count, wanted)
        assert (array.shape, array.dtype) == ((count, WIDE), wanted)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        array[...] = 1
        assert (array == 1).all()
        places.add(address(array))
        assert as_tensor(array).data_ptr() == address(array)
        del array
    assert len(places) == 1


def test_small_arrays_and_pools_without_reuse_get_fresh_memory() -> None:
    kept = BufferPool(reuse=True)
    assert lend(BufferPool(reuse=False)).base is None
    assert kept.empty(1, 1, (MIN_NBYTES - 1,), np.dtype(np.uint8)).base is None
    assert kept.empty(3, 3, (0, 5), np.dtype(np.float32)).shape == (3, 0, 5)
    assert kept.empty(1, 1, (MIN_NBYTES,), np.dtype(np.uint8)).base is not None


def test_at_most_max_free_unused_arrays_are_kept() -> None:
    pool = BufferPool(reuse=True, max_free=2)
    arrays = [lend(pool) for _ in range(5)]
    del arrays
    assert [len(free) for free in pool._free.values()] == [2]


def test_after_clear_lent_arrays_stay_valid_and_are_not_reused() -> None:
    pool = BufferPool(reuse=True)
    array = lend(pool)
    array[...] = 3
    pool.clear()
    assert (array == 3).all()
    del array
    assert pool._free == {}


def test_a_pickle_has_the_settings_and_no_memory() -> None:
    pool = BufferPool(reuse=True, max_free=3)
    del [lend(pool)][0]
    copy = pickle.loads(pickle.dumps(pool))
    assert (copy.reuse, copy.max_free, copy._free) == (True, 3, {})


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["take", "view", "drop"]), st.integers(0, 5)), max_size=40))
def test_no_two_referenced_arrays_share_memory(steps: list[tuple[str, int]]) -> None:
    pool = BufferPool(reuse=True)
    held: list[tuple[np.ndarray, int]] = []
    for number, (step, which) in enumerate(steps):
        if step == "take":
            array = lend(pool, 1 + which % 4)
            array[...] = number
            held.append((array, number))
            del array
        elif held and step == "view":
            array, expected = held[which % len(held)]
            held[which % len(held)] = (array[:, which:], expected)
            del array
        elif held:
            del held[which % len(held)]
        assert all((array == expected).all() for array, expected in held)


def test_concurrent_threads_never_get_the_same_array() -> None:
    pool = BufferPool(reuse=True, max_free=8)

    def work(number: int) -> bool:
        held: list[np.ndarray] = []
        is_own = True
        for step in range(300):
            array = lend(pool, 1)
            array[...] = number
            held.append(array)
            del array
            if len(held) > 3:
                held.pop(step % 4)
            is_own &= all((each[0, [0, -1]] == number).all() for each in held)
        return is_own

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(work, range(6)))


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_loop_that_keeps_no_batch_reuses_a_few_arrays(threads: int) -> None:
    raw = etl.RawIterator(RECORDS, etl.Pipeline([]), 4)
    iterator = etl.AsyncIterator(raw, 2, threads=threads) if threads else raw
    places = set()
    for _ in range(4):
        for batch in iterator:
            assert batch.features[:, 0].tolist() == batch.labels.tolist()
            places.add(address(batch.features))
            del batch
    # The caller's, two that are loaded ahead, and one that each thread may still hold.
    assert len(places) <= (3 + threads if threads else 2)


def test_a_batch_that_could_hold_more_records_than_there_are_takes_no_memory_for_them() -> None:
    (batch,) = etl.RawIterator(RECORDS, etl.Pipeline([]), batch_size=1 << 50)
    assert batch.labels.tolist() == list(range(22))


def test_an_iterator_without_reuse_makes_fresh_arrays_and_closing_one_with_it_frees_its_memory() -> None:
    for reuse in (False, True):
        iterator = etl.RawIterator(RECORDS, etl.Pipeline([]), 4, reuse=reuse)
        assert [batch.features.base is not None for batch in iterator] == [reuse] * 6
        assert any(iterator._pool._free.values()) == reuse
        iterator.close()
        assert not iterator._pool._free
