"""HDF5 files that somebody made: chunks that unpack without end, sizes that are only claimed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

from presave.columns import Column
from presave.shard_formats import find_format
from tests.torture.conftest import Tally
from tests.torture.hostile import attempt, bomb, refusal

ROW = 1 << 16
COLUMN = Column("x", "|u1", (ROW,), 10)
DEFLATE = h5py.h5z.FILTER_DEFLATE


def _create(
    file: h5py.File, chunk: tuple[int, ...], filters: list[int], shape: tuple[int, ...] = (10, ROW)
) -> h5py.Dataset:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_chunk(chunk)
    for each in filters:
        creation.set_filter(each, h5py.h5z.FLAG_OPTIONAL, (9,) if each == DEFLATE else ())
    space = h5py.h5s.create_simple(shape)
    return h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U8LE, space, creation))


def _holds(content: Callable[[], bytes], *filters: int, mask: int = 0) -> Callable[[h5py.File], object]:
    """A chunk that holds these bytes, which are what its filters made, but for those of `mask`."""

    def make(file: h5py.File) -> None:
        _create(file, (1, ROW), [DEFLATE, *filters]).id.write_direct_chunk((0, 0), content(), filter_mask=mask)

    return make


def _lies(arguments: Any, start: int, forged: bytes) -> Callable[[h5py.File], None]:
    """A chunk that says of itself that it unpacks to other than its size."""

    def make(file: h5py.File) -> None:
        data = file.create_dataset("x", data=np.zeros((10, ROW), np.uint8), chunks=(1, ROW), **arguments)
        _, stored = data.id.read_direct_chunk((0, 0))
        data.id.write_direct_chunk((0, 0), stored[:start] + forged + stored[start + len(forged) :])

    return make


CHUNKS: dict[str, Callable[[h5py.File], object]] = {
    "8 GiB from a chunk of 64 KiB": _holds(lambda: bomb(8 << 30)),
    "packed twice": _holds(lambda: zlib.compress(bomb(8 << 30)), DEFLATE),
    "with a checksum": lambda file: _create(file, (1, ROW), [DEFLATE, h5py.h5z.FILTER_FLETCHER32]),
    "unknown filter": lambda file: _create(file, (1, ROW), [32099]),
    "scale-offset": lambda file: file.create_dataset("x", (10, ROW), "u1", scaleoffset=0, chunks=(1, ROW)),
    "cut off": _holds(lambda: zlib.compress(bytes(ROW))[:-9]),
    "garbage": _holds(lambda: b"garbage"),
    "too short": _holds(lambda: zlib.compress(bytes(ROW - 1))),
    "too short, not packed": _holds(lambda: bytes(9), mask=1),
    "lz4 of 2^60 bytes": _lies(hdf5plugin.LZ4(), 0, (1 << 60).to_bytes(8, "big")),
    "zstd of another size": _lies(hdf5plugin.Zstd(), 5, b"\xff\xfe"),
    "zstd without a size": _lies(hdf5plugin.Zstd(), 0, b"\x50\x2a\x4d\x18"),
    "blosc of 4 GiB": _lies(hdf5plugin.Blosc(), 4, b"\xff" * 4),
    "blosc2 of 2^60 bytes": _lies(hdf5plugin.Blosc2(), 30, (1 << 60).to_bytes(8, "big")),
}


def _gather(path: Path, column: Column) -> bytes:
    shard = find_format("hdf5").open_shard([path], [column])
    out = np.empty((1, *column.shape), column.dtype)
    shard.columns()[column.name].gather(np.zeros(1, np.int64), out, slice(0, 1))
    return out.tobytes()


def _view(path: Path, column: Column) -> bytes:
    return find_format("hdf5").open_shard([path], [column]).columns()[column.name].view(0, 2).tobytes()


@pytest.mark.parametrize("read", [_gather, _view], ids=["gather", "view"])
@pytest.mark.parametrize("name", CHUNKS)
def test_a_chunk_that_unpacks_otherwise_than_it_must_is_refused(
    name: str, read: Callable[[Path, Column], bytes], tmp_path: Path, tally: Tally
) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        CHUNKS[name](file)
    refusal(lambda: read(tmp_path / "f.h5", COLUMN), str(tmp_path / "f.h5"), kinds=("StoreError",))
    tally("hostile input, forged chunk in an HDF5 file", "refused, with file and reason")


@pytest.mark.parametrize(
    ("shape", "chunk"),
    [
        ((1 << 40, ROW), (1, ROW)),
        ((1 << 40, ROW), None),
        ((10, 1 << 31), (1, 1 << 31)),
        ((10, 1 << 40), (1, 1 << 20)),
        ((1 << 20, ROW), (1 << 15, ROW)),
    ],
    ids=str,
)
@pytest.mark.parametrize("filters", [[], [DEFLATE]], ids=["plain", "gzip"])
def test_a_data_set_of_terabytes_in_a_file_of_nothing_is_refused(
    shape: tuple[int, int], chunk: tuple[int, int] | None, filters: list[int], tmp_path: Path, tally: Tally
) -> None:
    with h5py.File(tmp_path / "f.h5", "w", libver="latest") as file:
        if chunk is None:
            file.create_dataset("x", shape, "u1")
        else:
            _create(file, chunk, filters, shape)
    column = Column("x", "|u1", shape[1:], shape[0])
    refusal(lambda: _view(tmp_path / "f.h5", column), str(tmp_path / "f.h5"), "'x'", kinds=("StoreError",))
    tally("hostile input, HDF5 data set that claims terabytes", "refused, with file and reason")


def test_what_presave_writes_unpacks_within_a_chunk(tmp_path: Path) -> None:
    """That the limits above hold off nothing but bombs: constant rows, which pack best."""
    rows = np.zeros((10, ROW), np.uint8)
    for compression in ("gzip", "lzf", "zstd", "blosc", "blosc2", "lz4"):
        (path,) = find_format("hdf5").write_columns(tmp_path, compression, {"x": rows}, {"compression": compression})
        assert attempt(lambda path=path: _view(path, COLUMN).count(0)).message == str(2 * ROW)
