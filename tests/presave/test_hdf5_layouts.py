"""HDF5 files in layouts that presave does not write are read correctly or refused, never read wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from presave.columns import Column
from presave.errors import StoreError
from presave.shard_formats import find_format

COLUMN = Column("x", "<i4", (3,), 10)
ROWS = np.arange(30, dtype="<i4").reshape(10, 3)


def _chunks_out_of_order(file: h5py.File) -> None:
    data = file.create_dataset("x", (10, 3), "<i4", chunks=(2, 3))
    for first in (2, 0, 8, 4, 6):
        data.id.write_direct_chunk((first, 0), ROWS[first : first + 2].tobytes())


def _compact(file: h5py.File) -> None:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((10, 3))
    made = h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32LE, space, creation)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, ROWS)


LAYOUTS: dict[str, Callable[[h5py.File], object]] = {
    "chunks in order": lambda file: file.create_dataset("x", data=ROWS, chunks=(4, 3)),
    "chunks out of order": _chunks_out_of_order,
    "chunks wider": lambda file: file.create_dataset("x", data=ROWS, chunks=(2, 5), maxshape=(None, None)),
    "chunks narrower": lambda file: file.create_dataset("x", data=ROWS, chunks=(5, 1)),
    "contiguous": lambda file: file.create_dataset("x", data=ROWS),
    "compact": _compact,
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_data_of_any_layout_are_read_as_hdf5_reads_them(
    make: Callable[[h5py.File], object], libver: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "f.h5", "w", libver=libver) as file:
        make(file)
    shard = find_format("hdf5").open_shard([tmp_path / "f.h5"], [COLUMN])
    column = shard.columns()["x"]
    order = np.array([9, 0, 3, 3, 8, 1])
    out = np.zeros((6, 3), "<i4")
    column.gather(order, out, slice(0, 6))
    np.testing.assert_array_equal(out, ROWS[order], strict=True)
    out = np.zeros((12, 3), "<i4")
    column.gather(order, out, np.arange(12)[::-2])
    np.testing.assert_array_equal(out[::-2], ROWS[order], strict=True)
    out = np.zeros((10, 3), "<i4")
    column.copy_ranges(np.array([7, 0, 2, 5]), np.array([10, 2, 2, 9]), out, np.array([0, 3, 5, 6]))
    np.testing.assert_array_equal(out[[0, 1, 2, 3, 4, 6, 7, 8, 9]], ROWS[[7, 8, 9, 0, 1, 5, 6, 7, 8]], strict=True)
    np.testing.assert_array_equal(column.view(3, 8), ROWS[3:8], strict=True)
    assert not column.view(3, 8).flags.writeable
    shard.close()


@pytest.mark.parametrize("chunks", [None, (2, 3)], ids=["contiguous", "chunked"])
def test_data_that_were_never_written_are_read_as_their_fill_value(
    chunks: tuple[int, int] | None, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("x", (10, 3), "<i4", chunks=chunks, fillvalue=7)
    shard = find_format("hdf5").open_shard([tmp_path / "f.h5"], [COLUMN])
    assert (shard.columns()["x"].view(0, 10) == 7).all()
    shard.close()


def test_a_file_cut_off_inside_its_data_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("x", data=ROWS)
    content = (tmp_path / "f.h5").read_bytes()
    (tmp_path / "f.h5").write_bytes(content[:-1])
    with pytest.raises(StoreError, match=r"f\.h5: cannot be read"):
        find_format("hdf5").open_shard([tmp_path / "f.h5"], [COLUMN])
