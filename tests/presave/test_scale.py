"""Memory use does not grow with the number of records."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import etl
import presave
from etl.loading.sampler import Sampler
from presave.columns import shard_columns
from presave.manifest import Manifest, Shard, StoredFile
from presave.manifest_file import save_manifest
from presave.schema import Field
from presave.shard_formats import find_format

FIELDS = (Field("x", "<i8", ()), Field("r", "|u1", (None,)))
FEW, MANY = 10_000, 1_000_000
ALLOWED_NBYTES = 100_000


@pytest.fixture
def _traced() -> Iterator[None]:
    etl.load_kernels()  # otherwise a background thread imports them at any moment
    tracemalloc.start()
    yield
    tracemalloc.stop()


def _store(folder: Path, name: str, records: int) -> Path:
    """Make a store of `records` records of 9 bytes in 4 shards, without `presave.write`, which would be slow."""
    folder.mkdir()
    schema = {field.name: field for field in FIELDS}
    shards = []
    for number in range(4):
        count = records // 4
        elements = {"r": count}
        values = [
            np.arange(count) + number * count,
            np.ones(count, np.uint8),
            np.arange(1, count + 1),
        ]
        columns = {
            column.name: array for column, array in zip(shard_columns(schema, count, elements), values, strict=True)
        }
        paths = find_format(name).write_columns(folder, f"{number:05d}", columns, {})
        files = tuple(StoredFile(path.name, path.stat().st_size, "0" * 32) for path in paths)
        shards.append(Shard(count, files, elements))
    save_manifest(Manifest(name, FIELDS, tuple(shards)), folder)
    return folder


def _peak_nbytes(folder: Path, order: np.ndarray | None) -> int:
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with presave.open_store(folder, trusted=True) as store:
        if order is not None:
            assert store.gather(order)["x"].tolist() == order.tolist()
        _, peak = tracemalloc.get_traced_memory()
    return peak - before


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("name", presave.formats())
def test_opening_a_hundred_times_the_records_needs_no_more_memory(name: str, tmp_path: Path) -> None:
    few, many = (_store(tmp_path / str(count), name, count) for count in (FEW, MANY))
    _peak_nbytes(few, None)  # imports the modules that are imported when first used
    assert _peak_nbytes(many, None) - _peak_nbytes(few, None) < ALLOWED_NBYTES


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("name", sorted(set(presave.formats()) - {"pickle"}))  # pickle reads whole shards
def test_gathering_a_batch_from_a_hundred_times_the_records_needs_no_more_memory(name: str, tmp_path: Path) -> None:
    few, many = (_store(tmp_path / str(count), name, count) for count in (FEW, MANY))
    order = np.random.default_rng(0).integers(0, FEW, 128)
    _peak_nbytes(few, order)
    assert _peak_nbytes(many, order * (MANY // FEW)) - _peak_nbytes(few, order) < ALLOWED_NBYTES


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_of_ten_million_records_is_ordered_in_8_bytes_each(shuffle: bool) -> None:
    records = 10_000_000
    order = Sampler(records, batch_size=64, shuffle=shuffle, seed=0, drop_last=False)
    order.order(0)[:1].copy()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    numbers = order.order(1)
    _, peak = tracemalloc.get_traced_memory()
    assert len(numbers) == records
    assert peak - before <= 8 * records + ALLOWED_NBYTES


@pytest.mark.usefixtures("_traced")
def test_a_write_holds_one_shard_and_not_the_data_set(tmp_path: Path) -> None:
    class Large:
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> dict[str, np.ndarray]:
            return {"x": np.full(1 << 20, index, np.uint8), "r": np.full(1 << 18, index, np.uint8)}

    presave.write(tmp_path / "warm", Large(), ragged=["r"], shard_nbytes=4 << 20).close()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    presave.write(tmp_path / "s", Large(), ragged=["r"], shard_nbytes=4 << 20).close()
    _, peak = tracemalloc.get_traced_memory()
    # Not 80 MiB, but a shard, a copy of its ragged values while they are concatenated, and a record.
    assert peak - before < 12 << 20


@pytest.mark.usefixtures("_traced")
def test_a_conversion_holds_one_shard_and_not_the_data_set(tmp_path: Path) -> None:
    records = [{"x": np.full(1 << 20, number, np.uint8)} for number in range(48)]
    presave.write(tmp_path / "s", records, shard_nbytes=4 << 20).close()
    del records
    for name in sorted(set(presave.formats()) - {"pickle"}):  # its shards always have 128 records
        presave.convert(tmp_path / "s", tmp_path / f"warm-{name}", format=name, shard_nbytes=4 << 20).close()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        presave.convert(tmp_path / "s", tmp_path / name, format=name, shard_nbytes=4 << 20).close()
        _, peak = tracemalloc.get_traced_memory()
        assert peak - before < 12 << 20
