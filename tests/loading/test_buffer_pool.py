"""The memory of a batch is reused once nothing refers to the batch any more, and not before."""

from __future__ import annotations

import gc
import pickle
import random
import threading
from collections.abc import Iterator
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


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64", "bool"])
def test_an_array_has_the_dtype_and_is_writable_everywhere(dtype: str) -> None:
    pool = BufferPool(reuse=True)
    wanted = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    for count in (4, 3, 1):
        array = lend(pool, count, wanted)
        assert (array.shape, array.dtype) == ((count, WIDE), wanted)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        array[...] = 1
        assert (array == 1).all()
        tensor = as_tensor(array)
        assert tensor.data_ptr() == address(array)


def test_a_smaller_last_batch_takes_the_memory_of_a_whole_one() -> None:
    pool = BufferPool(reuse=True)
    place = address(lend(pool))
    assert address(lend(pool, 1)) == place


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


@settings(deadline=None, max_examples=50)
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
    mixed: list[int] = []

    def work(number: int) -> None:
        draw = random.Random(number)
        held: list[np.ndarray] = []
        for _ in range(300):
            array = lend(pool, 1)
            array[...] = number
            held.append(array)
            del array
            if len(held) > 3:
                held.pop(draw.randrange(len(held)))
            mixed.extend(number for array in held if array[0, 0] != number or array[0, -1] != number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mixed == []


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loop_that_keeps_no_batch_reuses_a_few_arrays(threads: int, dtype: str) -> None:
    raw = etl.RawIterator(RECORDS, etl.Pipeline([]), 4, dtype=dtype)
    iterator = etl.AsyncIterator(raw, 2, threads=threads) if threads else raw
    places = set()
    for _ in range(4):
        for batch in iterator:
            assert batch.features[:, 0].tolist() == batch.labels.tolist()
            places.add(address(batch.features))
            del batch
    assert len(places) <= (4 if threads else 2)  # the caller's, two that are loaded ahead, and one to spare


@pytest.mark.parametrize("threads", [0, 3])
def test_a_loop_may_keep_any_part_of_any_batch(threads: int) -> None:
    raw = etl.RawIterator(RECORDS, etl.Pipeline([]), 4, shuffle=True)
    iterator = etl.AsyncIterator(raw, 2, threads=threads) if threads else raw
    draw = random.Random(0)
    kept: list[tuple[Any, int]] = []
    for _ in range(6):
        for batch in iterator:
            row = draw.randrange(len(batch))
            part = batch.features[row] if draw.random() < 0.5 else torch.from_numpy(batch.features)[row]
            kept.append((part, int(batch.labels[row])))
            del part
            if len(kept) > 9:
                del kept[draw.randrange(len(kept))]
            assert all((values == number).all() for values, number in kept)
    assert len(kept) == 9


def test_without_reuse_every_batch_is_a_fresh_array() -> None:
    iterator = etl.RawIterator(RECORDS, etl.Pipeline([]), 4, reuse=False)
    assert all(batch.features.base is None for batch in iterator)


def test_closing_frees_unused_memory() -> None:
    iterator = etl.RawIterator(RECORDS, etl.Pipeline([]), 4)
    list(iterator)
    assert any(iterator._pool._free.values())
    iterator.close()
    assert not iterator._pool._free
