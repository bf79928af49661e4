"""Large rows, which are copied in another way than small ones, are read correctly whatever was read before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import presave
from presave.shard_formats.arrays import SMALL_ROW_NBYTES

RECORDS = [{"features": np.full((3, SMALL_ROW_NBYTES), number, np.uint8), "label": number} for number in range(23)]
ORDER = [20, 1, 20, 7, 0, 22, 2]


def write(path: Path, format: str, **options: str) -> presave.Store:
    return presave.write(path, RECORDS, format=format, shard_nbytes=60_000, options=options or None)


@pytest.mark.parametrize(
    ("format", "options"), [*((name, {}) for name in presave.formats()), ("hdf5", {"compression": "gzip"})]
)
def test_large_rows_are_gathered_in_the_given_order(tmp_path: Path, format: str, options: dict[str, str]) -> None:
    with write(tmp_path / "store", format, **options) as store:
        for _ in range(2):
            arrays = store.gather(ORDER)
            assert arrays["features"].max(axis=(1, 2)).tolist() == ORDER
            assert arrays["features"].min(axis=(1, 2)).tolist() == ORDER
            assert arrays["label"].tolist() == ORDER


def test_large_rows_are_read_from_memory_after_preload(tmp_path: Path) -> None:
    with write(tmp_path / "store", "npy") as store:
        store.gather(ORDER)
        store.preload()
        for file in store.path.glob("features*"):
            file.write_bytes(b"\0" * file.stat().st_size)
        assert store.gather(ORDER)["features"].max(axis=(1, 2)).tolist() == ORDER


def test_a_closed_store_refuses_large_rows_that_it_read_before(tmp_path: Path) -> None:
    store = write(tmp_path / "store", "npy")
    store.gather(ORDER)
    store.close()
    with pytest.raises(presave.StoreError, match="is closed"):
        store.gather(ORDER)


def test_a_pickle_is_read_once_for_all_fields_of_a_gather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with write(tmp_path / "store", "pickle") as store:
        reads: list[int] = []
        columns = store._shards.columns

        def counted(shard: int) -> object:
            reads.append(shard)
            return columns(shard)

        monkeypatch.setattr(store._shards, "columns", counted)
        store.gather(range(len(store)))
        assert reads == list(range(len(store.manifest.shards)))
