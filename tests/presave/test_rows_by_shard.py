"""Store.rows_by_shard: the arrays that hold records, for loops that do more than copy rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import presave

RECORDS = [{"features": np.full((4, 2), number, np.int16), "words": np.arange(number)} for number in range(23)]
SHARD_NBYTES = 600


def write(path: Path, format: str, **options: str) -> presave.Store:
    return presave.write(
        path, RECORDS, format=format, ragged=["words"], shard_nbytes=SHARD_NBYTES, options=options or None
    )


def gather_by_shard(store: presave.Store, indices: list[int]) -> np.ndarray:
    out = np.full((len(indices), 4, 2), -1, np.int16)
    for array, rows, slots in store.rows_by_shard("features", indices):
        assert rows.dtype == slots.dtype == np.int64
        assert array.dtype == np.int16
        assert array.shape[1:] == (4, 2)
        assert array.flags.c_contiguous
        assert not array.flags.writeable
        out[slots] = array[rows]
    return out


@pytest.mark.parametrize(
    ("format", "options"), [*((name, {}) for name in presave.formats()), ("hdf5", {"compression": "gzip"})]
)
@pytest.mark.parametrize("indices", [[], [22], [3, 4, 5], [20, 1, 20, 7, 0, 22, 2]], ids=repr)
def test_copying_the_rows_of_each_shard_into_their_slots_equals_gather(
    tmp_path: Path, format: str, options: dict[str, str], indices: list[int]
) -> None:
    with write(tmp_path / "store", format, **options) as store:
        assert len(store.manifest.shards) > 1 or format == "pickle"
        np.testing.assert_array_equal(gather_by_shard(store, indices), store.gather(indices)["features"])


@pytest.mark.parametrize("format", ["npy", "hdf5", "torch", "safetensors"])
def test_mapped_formats_yield_the_whole_shard_without_a_copy(tmp_path: Path, format: str) -> None:
    with write(tmp_path / "store", format) as store:
        ((first, _, _),) = store.rows_by_shard("features", [0])
        ((again, rows, _),) = store.rows_by_shard("features", [1])
        assert np.shares_memory(first, again)
        assert len(again) == store.manifest.shards[0].records
        assert rows.tolist() == [1]


def test_arrays_of_a_store_in_memory_are_read_only(tmp_path: Path) -> None:
    write(tmp_path / "store", "npy").close()
    with presave.open_store(tmp_path / "store", cache="ram") as store:
        ((array, _, _),) = store.rows_by_shard("features", [0])
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 9
        assert store[0]["features"].max() == 0


@pytest.mark.parametrize("field", ["words", "labels"])
def test_ragged_and_unknown_fields_raise_an_error_that_lists_the_fixed_ones(tmp_path: Path, field: str) -> None:
    store = write(tmp_path / "store", "npy")
    with store, pytest.raises(presave.StoreError, match=f"has no fixed field '{field}'; it has features"):
        store.rows_by_shard(field, [0])


def test_wrong_indices_and_closed_stores_are_refused_at_the_call(tmp_path: Path) -> None:
    with write(tmp_path / "store", "npy") as store:
        with pytest.raises(IndexError, match="record 23 of"):
            store.rows_by_shard("features", [23])
        with pytest.raises(TypeError, match="indices must be integers with one axis"):
            store.rows_by_shard("features", np.array([True, False]))
    with pytest.raises(presave.StoreError, match="is closed"):
        store.rows_by_shard("features", [0])
