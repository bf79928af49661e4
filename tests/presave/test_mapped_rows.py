"""Copying rows straight out of mapped shards, with the compiled loop and with NumPy."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave
from presave import mapped_rows
from tests.programs import output_of

RECORDS = 300
SHUFFLED = np.random.default_rng(0).permutation(RECORDS)
# Gives shards of about 25 records each.
SHARD_NBYTES = 25 * 4800


@pytest.fixture(params=["numba", "numpy"], autouse=True)
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numba":
        mapped_rows.COMPILED.wait()
        assert mapped_rows.COMPILED.module is not None
    else:
        monkeypatch.setattr(mapped_rows.COMPILED, "module", None)
        monkeypatch.setattr(mapped_rows.COMPILED, "begin", lambda: None)
    return str(request.param)


@pytest.fixture(scope="module")
def written() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [
        {
            "large": random.integers(0, 256, (40, 40, 3), np.uint8),
            "half": random.random(7).astype(np.float16),
            "label": np.int64(number),
        }
        for number in range(RECORDS)
    ]


@pytest.fixture(params=["several shards", "one shard"])
def store(request: pytest.FixtureRequest, tmp_path: Path, written: list[dict[str, np.ndarray]]) -> presave.Store:
    nbytes = SHARD_NBYTES if request.param == "several shards" else None
    return presave.write(tmp_path / "store", written, format="npy", shard_nbytes=nbytes)


ORDERS = {
    "shuffled": SHUFFLED,
    "sequential": np.arange(RECORDS),
    "backwards": np.arange(RECORDS)[::-1],
    "with gaps": np.arange(0, RECORDS, 3),
    "of one shard": np.array([31, 30, 49, 30]),
    "runs over shards": np.r_[20:60, 0:30, 299, 298, 0, 0, 0],
    "of int32": SHUFFLED.astype(np.int32),
    "read-only": np.frombuffer(SHUFFLED.tobytes(), SHUFFLED.dtype),
    "none": np.empty(0, np.int64),
}


@pytest.mark.parametrize("order", ORDERS)
def test_rows_are_gathered_in_any_order(store: presave.Store, written: list[dict[str, np.ndarray]], order: str) -> None:
    numbers = ORDERS[order]
    found = store.gather(numbers)
    for name in ("large", "half", "label"):
        assert len(found[name]) == len(numbers)
        for row, number in zip(found[name], numbers.tolist(), strict=True):
            assert np.array_equal(row, written[number][name])


def test_nothing_outside_out_is_written(store: presave.Store) -> None:
    guarded = np.full(12 + 7 * RECORDS, 7, np.float16)
    store.gather(SHUFFLED, {"half": guarded[6:-6].reshape(RECORDS, 7)})
    assert (guarded[:6] == 7).all()
    assert (guarded[-6:] == 7).all()


def test_shards_may_have_unequal_lengths(tmp_path: Path, written: list[dict[str, np.ndarray]]) -> None:
    class Some(list):  # type: ignore[type-arg]
        def __getitem__(self, number):  # type: ignore[no-untyped-def]
            if number in (1, 2, 3, 30, 299):
                raise ValueError("bad")
            return super().__getitem__(number)

    store = presave.write(tmp_path / "some", Some(written), on_error="skip", shard_nbytes=SHARD_NBYTES)
    assert len({shard.records for shard in store.manifest.shards}) > 1
    expected = [number for number in range(RECORDS) if number not in (1, 2, 3, 30, 299)]
    order = np.random.default_rng(0).permutation(len(expected))
    assert store.gather(order)["label"].tolist() == [expected[number] for number in order.tolist()]


def test_a_preloaded_store_copies_from_memory_and_not_from_its_files(store: presave.Store) -> None:
    before = store.gather(SHUFFLED)
    store.preload()
    for file in store.path.glob("*.npy"):
        file.write_bytes(b"\0" * file.stat().st_size)
    assert np.array_equal(store.gather(SHUFFLED)["large"], before["large"])


def test_an_unreferenced_store_is_freed_without_the_garbage_collector(store: presave.Store) -> None:
    opened = presave.open_store(store.path)
    opened.gather(SHUFFLED)
    watched = weakref.ref(opened._shards)
    gc.disable()
    try:
        del opened
        assert watched() is None
    finally:
        gc.enable()


CLOSED_WHILE_READ = """
import sys, threading
import numpy as np, presave
from presave import mapped_rows
if sys.argv[2] == "numba":
    mapped_rows.COMPILED.wait()
order = np.random.default_rng(0).permutation(300)
for turn in range(20):
    store = presave.open_store(sys.argv[1])
    def read():
        try:
            while True:
                store.gather(order)
        except presave.StoreError as error:
            ends.append(str(error))
    ends = []
    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    store.gather(order)
    store.close()
    for thread in threads:
        thread.join()
    assert len(ends) == 2 and all("is closed" in end for end in ends), ends
"""


def test_closing_a_store_unmaps_nothing_that_threads_are_reading(store: presave.Store, loop: str) -> None:
    output_of("-c", CLOSED_WHILE_READ, store.path, loop)


class InterruptedOnce(np.ndarray):
    """An array at whose address the first look is interrupted."""

    looks = 0

    @property
    def ctypes(self) -> Any:
        InterruptedOnce.looks += 1
        if InterruptedOnce.looks == 1:
            raise KeyboardInterrupt
        return super().ctypes


@pytest.mark.parametrize("loop", ["numba"], indirect=True)
def test_a_shard_is_found_again_after_an_interrupt_while_it_was_looked_for() -> None:
    array = np.arange(3).view(InterruptedOnce)
    rows = mapped_rows.MappedRows(np.array([0, 3]))
    with pytest.raises(KeyboardInterrupt):
        rows.find(np.array([2]), 8, lambda shard: array)
    found = rows.find(np.array([2]), 8, lambda shard: array)
    assert found is not None
    assert found.tolist() == [array.__array_interface__["data"][0] + 16]
