"""Memory use does not grow with the number of records."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import etl
import presave
from presave.columns import shard_columns
from presave.manifest import Manifest, Shard, StoredFile
from presave.manifest_file import save_manifest
from presave.schema import Field
from presave.shard_formats import find_format

FIELDS = (Field("x", "<i8", ()), Field("r", "|u1", (None,)))
FEW, MANY = 5_000, 500_000
ALLOWED_NBYTES = 100_000


@pytest.fixture
def _traced() -> Iterator[None]:
    etl.kernels.load_kernels()  # otherwise a background thread imports them at any moment
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


@contextmanager
def _peak_nbytes(found: list[int]) -> Iterator[None]:
    """Append to `found` by how much more memory than before the block has at its peak."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    yield
    found.append(tracemalloc.get_traced_memory()[1] - before)


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("name", presave.formats())
def test_opening_and_gathering_from_a_hundred_times_the_records_needs_no_more_memory(name: str, tmp_path: Path) -> None:
    order = np.random.default_rng(0).integers(0, FEW, 128)
    opening: list[int] = []
    gathering: list[int] = []
    few, many = (_store(tmp_path / str(count), name, count) for count in (FEW, MANY))
    # At first, modules are imported that are imported when first used.
    for folder, indices in ((few, order), (few, order), (many, order * (MANY // FEW))):
        with ExitStack() as stack:
            with _peak_nbytes(opening):
                store = stack.enter_context(presave.open_store(folder, trusted=True))
            with _peak_nbytes(gathering):
                assert store.gather(indices)["x"].tolist() == indices.tolist()
    assert opening[2] - opening[1] < ALLOWED_NBYTES
    if name != "pickle":  # which reads whole shards
        assert gathering[2] - gathering[1] < ALLOWED_NBYTES


@pytest.mark.usefixtures("_traced")
def test_a_write_holds_one_shard_and_not_the_data_set(tmp_path: Path) -> None:
    class Large:
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> dict[str, np.ndarray]:
            return {"x": np.full(1 << 20, index, np.uint8), "r": np.full(1 << 18, index, np.uint8)}

    peaks: list[int] = []
    for name in ("warm", "s"):
        with _peak_nbytes(peaks):
            presave.write(tmp_path / name, Large(), ragged=["r"], shard_nbytes=4 << 20).close()
    # Not 80 MiB, but a shard, a copy of its ragged values while they are concatenated, and a record.
    assert peaks[1] < 12 << 20


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("name", sorted(set(presave.formats()) - {"pickle"}))  # its shards always have 128 records
def test_a_conversion_holds_one_shard_and_not_the_data_set(name: str, tmp_path: Path) -> None:
    records = [{"x": np.full(1 << 20, number, np.uint8)} for number in range(24)]
    presave.write(tmp_path / "s", records, shard_nbytes=4 << 20).close()
    del records
    peaks: list[int] = []
    for target in ("warm", "t"):
        with _peak_nbytes(peaks):
            presave.convert(tmp_path / "s", tmp_path / target, format=name, shard_nbytes=4 << 20).close()
    assert peaks[1] < 12 << 20


@pytest.mark.usefixtures("_traced")
def test_reading_compressed_shards_holds_one_chunk_and_not_one_of_each_shard(tmp_path: Path) -> None:
    records = [{"x": np.full(1 << 20, number, np.uint8)} for number in range(24)]
    peaks: list[int] = []
    with presave.write(
        tmp_path / "s", records, format="hdf5", options={"compression": "gzip"}, shard_nbytes=1
    ) as store:
        assert len(store.manifest.shards) == len(records)
        with _peak_nbytes(peaks):
            for number in range(len(records)):
                assert store[number]["x"][-1] == number
    assert peaks[0] < 12 << 20
