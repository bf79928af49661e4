"""Format "hdf5": one HDF5 file a shard, one chunked, uncompressed data set for each field."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from presave.checksum import checksum_file
from presave.errors import StoreError
from presave.manifest import Shard, StoredFile
from presave.schema import Field, Schema

# A chunk is the least that HDF5 reads. Small enough that a shuffled batch reads little that it does not want, large
# enough that small records are not read one by one.
CHUNK_NBYTES = 64 << 10


class Hdf5:
    """HDF5 through h5py, in the latest file format and without times, so that equal records give equal bytes."""

    name = "hdf5"

    def write_shard(
        self, folder: Path, number: int, schema: Schema, records: int, rows: Iterable[Mapping[str, np.ndarray]]
    ) -> Shard:
        path = folder / f"shard-{number:05d}.h5"
        with _create_file(path) as file:
            buffers = {name: _ChunkBuffer(_create(file, field, records)) for name, field in schema.items()}
            for arrays in rows:
                for name, buffer in buffers.items():
                    buffer.append(arrays[name])
            for buffer in buffers.values():
                buffer.flush()
        with path.open("rb") as written:
            os.fsync(written.fileno())
        return Shard(records, (StoredFile(path.name, path.stat().st_size, checksum_file(path)),))

    def open_shard(self, folder: Path, shard: Shard, schema: Schema) -> Hdf5Shard:
        (stored,) = shard.files
        path = folder / stored.name
        try:
            file = h5py.File(path, "r", locking=False)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error}); `etl verify` lists all that is damaged") from error
        try:
            data = {name: _open(file, path, field, shard.records) for name, field in schema.items()}
        except BaseException:
            file.close()
            raise
        return Hdf5Shard(path, file, data)


class Hdf5Shard:
    """The data sets of one shard. h5py takes its own lock, so several threads may read."""

    def __init__(self, path: Path, file: h5py.File, data: dict[str, h5py.Dataset]) -> None:
        self._path = path
        self._file = file
        self._data = data

    def gather(self, field: str, rows: np.ndarray, out: np.ndarray, slots: np.ndarray | slice) -> None:
        try:
            self._gather(field, rows, out, slots)
        except OSError as error:
            raise StoreError(
                f"{self._path}: cannot be read ({error}); `etl verify` lists all that is damaged"
            ) from error

    def _gather(self, field: str, rows: np.ndarray, out: np.ndarray, slots: np.ndarray | slice) -> None:
        # Each wanted chunk is read whole, once. h5py's own fancy indexing builds a selection point by point, and was
        # measured below a hundredth of this.
        data = self._data[field]
        chunk_rows = data.chunks[0]
        target = out[slots] if isinstance(slots, slice) else out
        places = np.arange(len(rows)) if isinstance(slots, slice) else slots
        if chunk_rows == 1 and target.flags.c_contiguous:  # which read_direct asks of its target
            for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                data.read_direct(target, np.s_[row : row + 1], np.s_[place : place + 1])
            return
        chunk = np.empty((chunk_rows, *data.shape[1:]), data.dtype)
        order = np.argsort(rows, kind="stable")
        numbers, starts = np.unique(rows[order] // chunk_rows, return_index=True)
        for number, members in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            first = number * chunk_rows
            last = min(first + chunk_rows, data.shape[0])
            data.read_direct(chunk, np.s_[first:last], np.s_[: last - first])
            target[places[members]] = chunk[rows[members] - first]

    def close(self) -> None:
        self._data.clear()
        self._file.close()


class _ChunkBuffer:
    """Collects rows until a chunk is full, so that each chunk is written once."""

    def __init__(self, data: h5py.Dataset) -> None:
        self._data = data
        self._rows = np.empty(data.chunks, data.dtype)
        self._held = 0
        self._written = 0

    def append(self, row: np.ndarray) -> None:
        self._rows[self._held] = row
        self._held += 1
        if self._held == len(self._rows):
            self.flush()

    def flush(self) -> None:
        if self._held:
            self._data[self._written : self._written + self._held] = self._rows[: self._held]
            self._written += self._held
            self._held = 0


def _create_file(path: Path) -> h5py.File:
    # h5py.File has no argument for this: by default the root group keeps the time at which it was made.
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    return h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, fcpl=creation, fapl=access))


def _create(file: h5py.File, field: Field, records: int) -> h5py.Dataset:
    chunk_rows = min(records, max(1, CHUNK_NBYTES // max(1, field.record_nbytes)))
    return file.create_dataset(
        field.safe_name, (records, *field.shape), field.dtype, chunks=(chunk_rows, *field.shape), track_times=False
    )


def _open(file: h5py.File, path: Path, field: Field, records: int) -> h5py.Dataset:
    data: Any = file.get(field.safe_name)
    expected = (records, *field.shape)
    if not isinstance(data, h5py.Dataset) or data.shape != expected or data.dtype.str != field.dtype:
        found = f"{data.dtype} of shape {data.shape}" if isinstance(data, h5py.Dataset) else "nothing"
        raise StoreError(
            f"{path}: field {field.name!r} holds {found}; the manifest says {np.dtype(field.dtype)} of shape {expected}"
        )
    if data.chunks is None:
        raise StoreError(f"{path}: field {field.name!r} is not chunked; presave did not write this file")
    return data
