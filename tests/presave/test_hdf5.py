"""HDF5: a gather reads each compressed chunk once, and uncompressed data is not read through HDF5 at all."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import presave
from presave.shard_formats import hdf5, hdf5_chunks
from presave.shard_formats.hdf5 import COMPRESSIONS, PLUGIN_FILTERS, Hdf5Column

COUNT = 60
ROW = (16, 1024)  # uint8: 16 KiB, so that a chunk has 4 rows and the store 15 chunks
CHUNK_ROWS = 4
has_plugins = importlib.util.find_spec("hdf5plugin") is not None


def _records() -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [
        {"x": random.integers(0, 4, ROW, np.uint8), "y": number, "r": random.integers(0, 9, random.integers(0, 9000))}
        for number in range(COUNT)
    ]


RECORDS = _records()


def _write(folder: Path, compression: str | None, shard_nbytes: int = 1 << 24) -> presave.Store:
    options = {} if compression is None else {"compression": compression}
    return presave.write(folder, RECORDS, format="hdf5", ragged=["r"], shard_nbytes=shard_nbytes, options=options)


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[presave.Store]:
    with _write(tmp_path_factory.mktemp("hdf5") / "s", "gzip") as store:
        yield store


@pytest.fixture
def chunks_read(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """Count how often each chunk is decompressed, by data set and index of the chunk."""
    counter: Counter[tuple[str, int]] = Counter()
    original = Hdf5Column._read_chunk

    def spy(self: Hdf5Column, number: int) -> np.ndarray:
        counter[self._data.name, number] += 1
        return original(self, number)

    monkeypatch.setattr(Hdf5Column, "_read_chunk", spy)
    return counter


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_makes_files_smaller_and_gives_the_same_records(compression: str, tmp_path: Path) -> None:
    if compression in PLUGIN_FILTERS and not has_plugins:
        pytest.skip("hdf5plugin is not installed")
    order = np.random.default_rng(1).permutation(COUNT)
    with (
        _write(tmp_path / "plain", None) as plain,
        _write(tmp_path / "s", compression, 1 << 18) as store,
    ):
        assert store.nbytes < 0.8 * plain.nbytes
        assert store.manifest.options == {"compression": compression}
        wanted, got = plain.gather(order), store.gather(order)
        np.testing.assert_array_equal(got["x"], wanted["x"], strict=True)
        assert all(np.array_equal(a, b) for a, b in zip(got["r"], wanted["r"], strict=True))


@pytest.mark.parametrize("shuffled", [True, False])
def test_a_gather_decompresses_each_needed_chunk_once_and_no_other(
    shuffled: bool, compressed: presave.Store, chunks_read: Counter[tuple[str, int]]
) -> None:
    order = np.repeat(np.arange(7, 50, 3), 2)
    if shuffled:
        np.random.default_rng(2).shuffle(order)
    gathered = compressed.gather(order, {"x": None})
    assert (gathered["x"] == [RECORDS[number]["x"] for number in order]).all()
    assert chunks_read == {("/x", number): 1 for number in set((order // CHUNK_ROWS).tolist())}


def test_a_gather_of_ragged_values_decompresses_each_chunk_once(
    compressed: presave.Store, chunks_read: Counter[tuple[str, int]]
) -> None:
    order = np.random.default_rng(3).permutation(COUNT)
    gathered = compressed.gather(order, {"r": None})
    assert all(np.array_equal(got, RECORDS[number]["r"]) for got, number in zip(gathered["r"], order, strict=True))
    read = {number: count for (name, number), count in chunks_read.items() if name == "/r"}
    assert len(read) > 10
    assert set(read.values()) == {1}


@settings(max_examples=30)
@given(data=st.data())
def test_compressed_rows_and_ranges_are_right_across_chunk_boundaries(
    compressed: presave.Store, data: st.DataObject
) -> None:
    order = data.draw(st.lists(st.integers(0, COUNT - 1), max_size=12))
    gathered = compressed.gather(order)
    first = data.draw(st.integers(0, COUNT - 1))
    last = data.draw(st.integers(first + 1, COUNT))
    view = compressed.view(first, last)
    for got, numbers in ((gathered, order), (view, range(first, last))):
        for place, number in enumerate(numbers):
            assert np.array_equal(got["x"][place], RECORDS[number]["x"])
            assert np.array_equal(got["r"][place], RECORDS[number]["r"])


def test_without_the_filter_the_error_says_what_to_install_and_not_that_the_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "s", "gzip").close()
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda number: False)
    said = r"shard-00000\.h5: 'x' is compressed with HDF5 filter 1, which is missing here: pip install 'fair-etl"
    with presave.open_store(tmp_path / "s") as store, pytest.raises(presave.StoreError, match=said):
        store[0]


@pytest.mark.parametrize("values", [1, 4], ids=["zeros", "random"])
def test_large_rows_that_would_be_refused_because_they_become_so_small_are_not_compressed(
    values: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks_read: Counter[tuple[str, int]]
) -> None:
    monkeypatch.setattr(hdf5, "MAX_CHUNK_NBYTES", hdf5.CHUNK_NBYTES)
    monkeypatch.setattr(hdf5_chunks, "MAX_ROW_NBYTES", hdf5.CHUNK_NBYTES - 1)
    rows = np.random.default_rng(0).integers(0, values, (COUNT, hdf5.CHUNK_NBYTES), np.uint8)
    records = [{"x": row, "y": number} for number, row in enumerate(rows)]
    with presave.write(tmp_path / "s", records, format="hdf5", options={"compression": "gzip"}) as store:
        assert (store.nbytes < rows.nbytes) is (values > 1)
        gathered = store.gather([7, 3])
    assert gathered["y"].tolist() == [7, 3]
    assert (gathered["x"] == rows[[7, 3]]).all()
    assert {number for name, number in chunks_read if name == "/x"} == {7, 3}


def test_uncompressed_data_is_not_read_by_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **named: Any) -> None:
        raise AssertionError("h5py was asked for data")

    with _write(tmp_path / "s", None, 1 << 18) as store:
        for method in ("__getitem__", "read_direct"):
            monkeypatch.setattr(h5py.Dataset, method, refuse)
        order = np.random.default_rng(4).permutation(COUNT)
        gathered = store.gather(order)
        assert (gathered["x"] == [RECORDS[number]["x"] for number in order]).all()
        assert all(np.array_equal(got, RECORDS[number]["r"]) for got, number in zip(gathered["r"], order, strict=True))
        assert (store.view(1, 3)["x"] == [RECORDS[1]["x"], RECORDS[2]["x"]]).all()
