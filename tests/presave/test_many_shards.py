"""A store with more shards than a process may have open files is written, read, verified and converted."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave
from presave.shard_formats import hdf5
from tests.few_descriptors import few_descriptors
from tests.readers import descriptors_below

RECORDS = [{"x": np.full(4, index), "y": index, "r": np.ones(1 + index % 3)} for index in range(150)]
# As many shards as records, but for pickle.
SETTINGS: dict[str, Any] = {"shard_nbytes": 1, "ragged": ["r"]}
COMPRESSED: dict[str, Any] = {**SETTINGS, "format": "hdf5", "options": {"compression": "gzip"}}
LEFT = 120
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("npy", {}),
    ("hdf5", {}),
    ("hdf5", {"compression": "gzip"}),
    ("safetensors", {}),
    ("pickle", {}),
]
every_format = pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)


@every_format
def test_many_shards_need_few_descriptors(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(len(RECORDS))
    with few_descriptors(LEFT):
        with presave.write(tmp_path / "s", RECORDS, format=name, jobs=2, options=options, **SETTINGS) as store:
            for _ in range(2):
                batch = store.gather(order)
                assert batch["y"].tolist() == order.tolist()
                assert [len(each) for each in batch["r"]] == [1 + index % 3 for index in order.tolist()]
            del batch
        assert presave.verify(tmp_path / "s") == []
        presave.convert(tmp_path / "s", tmp_path / "c", format="npy", jobs=2, trusted=True, shard_nbytes=1).close()
        assert presave.verify(tmp_path / "c") == []
    del store
    gc.collect()
    assert descriptors_below(tmp_path) == []


def test_several_stores_of_compressed_shards_share_the_descriptors(tmp_path: Path) -> None:
    with few_descriptors(LEFT):
        stores = [presave.write(tmp_path / f"{number}", RECORDS[:60], **COMPRESSED) for number in range(4)]
        for _ in range(2):
            for store in stores:
                assert store.gather(range(60), {"y": None})["y"].tolist() == list(range(60))
    for store in stores:
        store.close()


@every_format
def test_too_many_open_files_are_no_damage(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    presave.write(tmp_path / "s", RECORDS[:20], format=name, options=options, **SETTINGS).close()
    shortage = rf"{tmp_path}.*: cannot be opened: too many files are open, of which this process may have \d+"
    store = presave.open_store(tmp_path / "s", trusted=True)
    with few_descriptors(0):
        for attempt in (
            lambda: store.gather(range(20)),
            lambda: presave.verify(tmp_path / "s"),
            lambda: presave.open_store(tmp_path / "s", trusted=True),
            lambda: presave.write(tmp_path / "t", RECORDS, format=name, options=options, **SETTINGS),
        ):
            with pytest.raises(presave.StoreError, match=shortage):
                attempt()
    assert store.gather(range(20))["y"].tolist() == list(range(20))
    store.close()


def test_a_shortage_closes_all_files_that_are_not_in_use(tmp_path: Path) -> None:
    with presave.write(tmp_path / "s", RECORDS[:9], **COMPRESSED) as store:
        store.gather(range(9))
        assert len(hdf5._with_open_files) >= 9
        hdf5._close_oldest(0)
        assert hdf5._with_open_files == []
        assert store.gather(range(9))["y"].tolist() == list(range(9))


def test_threads_may_read_compressed_shards_while_others_are_opened_and_closed(tmp_path: Path) -> None:
    store = presave.write(tmp_path / "s", RECORDS, **COMPRESSED)

    def read(seed: int) -> None:
        for _ in range(2):
            order = np.random.default_rng(seed).permutation(len(RECORDS))
            batch = store.gather(order)
            assert batch["y"].tolist() == batch["x"][:, 0].tolist() == order.tolist()

    with few_descriptors(LEFT), ThreadPoolExecutor(4) as threads:
        list(threads.map(read, range(4)))
    store.close()
