"""Format "hdf5": one HDF5 file for each shard, with one data set for each column.

Contiguous data sets are memory-mapped: h5py's low-level interface gives their position in the file, and HDF5 itself
reads no data. Those in chunks, which presave compresses, are read chunk by chunk, each chunk once per batch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from presave import forks
from presave.columns import Column
from presave.errors import StoreError, is_shortage, max_open_files
from presave.mapped_file import map_file
from presave.shard_formats.arrays import ArrayShard, read_errors
from presave.shard_formats.format import Format
from presave.shard_formats.hdf5_chunks import MAX_CHUNK_NBYTES, filter_ids, read_chunk, validate_chunks
from presave.shard_formats.hdf5_file import create_file

# HDF5 compresses and reads whole chunks. This size is small enough that a shuffled batch reads little that it does not
# need, and large enough that small rows are not read one by one.
CHUNK_NBYTES = 64 << 10
# Classes of the package hdf5plugin by option value. gzip and lzf come with h5py.
PLUGIN_FILTERS = {"zstd": "Zstd", "blosc": "Blosc", "blosc2": "Blosc2", "lz4": "LZ4"}
# The share of the files that this process may have open which stay open, for all stores together. Opening one again
# takes as long as unpacking a few chunks.
OPEN_FILES_SHARE = 4
COMPRESSIONS = ("gzip", "lzf", *PLUGIN_FILTERS)
# Raised by h5py for damaged files.
READ_ERRORS = (OSError, RuntimeError, ValueError, KeyError)


class Hdf5(Format):
    """HDF5 through h5py, in the latest file format and without timestamps, so that equal records give equal bytes.

    The option `compression` is "gzip" or "lzf", or with hdf5plugin "zstd", "blosc", "blosc2" or "lz4".
    """

    name = "hdf5"
    options = MappingProxyType({"compression": lambda name: _filter_arguments(name)})

    def write_columns(
        self, folder: Path, shard_name: str, columns: Mapping[str, np.ndarray], options: Mapping[str, Any]
    ) -> list[Path]:
        path = folder / f"shard-{shard_name}.h5"
        filters = _filter_arguments(options.get("compression"))
        with create_file(path) as file:
            for name, array in columns.items():
                if not filters or array.size == 0:
                    # Contiguous, because HDF5 puts an index between chunks if there are more than a few.
                    file.create_dataset(name, data=array, track_times=False)
                    continue
                chunks = (_rows_of_chunk(array.shape, array.dtype), *array.shape[1:])
                file.create_dataset(name, data=array, chunks=chunks, track_times=False, **filters)
            for name, array in columns.items():
                if not filters or array.nbytes <= MAX_CHUNK_NBYTES:
                    continue
                try:
                    validate_chunks(file[name], sum(each.id.get_storage_size() for each in file.values()))
                except ValueError:  # it has become so small that readers would take it for a file made to fill memory
                    del file[name]
                    file.create_dataset(name, data=array, track_times=False)
        return [path]

    def open_shard(self, files: Sequence[Path], columns: Sequence[Column]) -> ArrayShard | Hdf5Shard:
        (path,) = files
        shard = Hdf5Shard(path, columns)
        try:
            with read_errors(path, *READ_ERRORS), shard.in_use() as data:
                arrays = {name: _map(path, each) for name, each in data.items()}
        except StoreError:
            shard.close()
            raise
        mapped = {name: array for name, array in arrays.items() if array is not None}
        if len(mapped) < len(arrays):
            return shard
        shard.close()
        return ArrayShard(mapped)


class Hdf5Shard:
    """A shard with compressed data sets. HDF5 needs its file to be open, so only the files opened last stay open.

    Attributes
    ----------
    data : mapping of str to h5py.Dataset
        The data sets by name; empty unless the file is open.
    """

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._path = path
        self._specs = columns
        self._file: h5py.File | None = None
        self._users = 0
        self._is_closed = False
        self._columns: dict[str, Hdf5Column] = {}
        self.data: Mapping[str, h5py.Dataset] = {}

    def columns(self) -> Mapping[str, Hdf5Column]:
        if not self._columns:
            with self.in_use() as data:
                self._columns = {name: Hdf5Column(self._path, self, name, each) for name, each in data.items()}
        return self._columns

    @contextmanager
    def in_use(self) -> Iterator[Mapping[str, h5py.Dataset]]:
        """Yield the data sets, and keep the file open during the block."""
        with forks.held_off(), _lock:
            # Opened inside the lock: HDF5 confuses data sets of a file that is opened twice.
            if self._file is None:
                self._open()
            self._users += 1
            data = self.data
        try:
            yield data
        finally:
            with forks.held_off(), _lock:
                self._users -= 1
                if self._is_closed:
                    self._close_unused()

    def close(self) -> None:
        with forks.held_off(), _lock:
            self._is_closed = True
            self._close_unused()

    def _open(self) -> None:
        _load_plugins()
        _close_oldest(max_open_files() // OPEN_FILES_SHARE - 1)
        with read_errors(self._path, *READ_ERRORS):
            try:
                self._file = h5py.File(self._path, "r", locking=False)
            except OSError as error:
                if not is_shortage(error):
                    raise
                _close_oldest(0)  # the rest of the program needs more than its share
                self._file = h5py.File(self._path, "r", locking=False)
            _with_open_files.append(self)
            try:
                self.data = {column.name: _open(self._file, self._path, column) for column in self._specs}
            except BaseException:
                self._close_unused()
                raise

    def _close_unused(self) -> None:
        if self._users:
            return
        with suppress(ValueError):
            _with_open_files.remove(self)
        if self._file is not None:
            self._file.close()
        self._file, self.data = None, {}


# The shards whose files are open, in the order in which they were opened; in this process, of all stores.
_with_open_files: list[Hdf5Shard] = []
# Held for changes of that list, and of the files and users of all shards.
_lock = threading.Lock()


def _close_oldest(max_open: int) -> None:
    """Close files that no thread is reading until `max_open` are open. The lock must be held."""
    for shard in [*_with_open_files]:
        if len(_with_open_files) <= max_open:
            break
        shard._close_unused()


class Hdf5Column:
    """A data set that is decompressed chunk by chunk. Several threads may read it: h5py has its own lock."""

    def __init__(self, path: Path, shard: Hdf5Shard, name: str, data: h5py.Dataset) -> None:
        self._path = path
        self._shard = shard
        self._name = name
        self._shape = data.shape
        self._dtype = data.dtype
        self._chunk_rows = data.chunks[0] if data.chunks is not None else _rows_of_chunk(data.shape, data.dtype)
        self._is_filtered = bool(filter_ids(data))

    @property
    def _data(self) -> h5py.Dataset:
        return self._shard.data[self._name]

    def gather(self, rows: NDArray[np.int64], out: np.ndarray, slots: NDArray[np.int64] | slice) -> None:
        target = out[slots] if isinstance(slots, slice) else out
        places = np.arange(len(rows)) if isinstance(slots, slice) else slots
        order = np.argsort(rows, kind="stable")
        numbers, starts = np.unique(rows[order] // self._chunk_rows, return_index=True)
        for number, members in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            chunk = self._read_chunk(number)
            target[places[members]] = chunk[rows[members] - number * self._chunk_rows]

    def copy_ranges(
        self, starts: NDArray[np.int64], ends: NDArray[np.int64], out: np.ndarray, places: NDArray[np.int64]
    ) -> None:
        # In file order, so that a chunk that several ranges share is decompressed once.
        held = -1
        chunk = np.empty(0)
        for k in np.argsort(starts, kind="stable").tolist():
            start, end, place = int(starts[k]), int(ends[k]), int(places[k])
            for number in range(start // self._chunk_rows, -(-end // self._chunk_rows)) if end > start else ():
                if number != held:
                    held, chunk = number, self._read_chunk(number)
                first = number * self._chunk_rows
                low, high = max(start, first), min(end, first + self._chunk_rows)
                out[place + low - start : place + high - start] = chunk[low - first : high - first]

    def locate(self, rows: NDArray[np.int64]) -> tuple[np.ndarray, NDArray[np.int64]]:
        found = np.empty((len(rows), *self._shape[1:]), self._dtype)
        self.gather(rows, found, slice(0, len(rows)))
        found.flags.writeable = False
        return found, np.arange(len(rows))

    def view(self, first: int, last: int) -> np.ndarray:
        rows = np.empty((last - first, *self._shape[1:]), self._dtype)
        self.copy_ranges(np.array([first]), np.array([last]), rows, np.array([0]))
        rows.flags.writeable = False
        return rows

    def _read_chunk(self, number: int) -> np.ndarray:
        first = number * self._chunk_rows
        last = min(first + self._chunk_rows, self._shape[0])
        buffer = _chunk_buffer((self._chunk_rows, *self._shape[1:]), self._dtype)
        with self._shard.in_use(), read_errors(self._path, *READ_ERRORS):
            if self._is_filtered:
                read_chunk(self._data, number, buffer)
            else:
                self._data.read_direct(buffer, np.s_[first:last], np.s_[: last - first])
        rows: np.ndarray = buffer[: last - first]
        return rows


def _rows_of_chunk(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Return how many rows of an array have `CHUNK_NBYTES`; one if a row has more."""
    return max(1, min(shape[0], CHUNK_NBYTES // max(1, math.prod(shape[1:]) * dtype.itemsize)))


# For each thread, the memory of the chunk that it has read last: one for all shards, of which there may be thousands.
_buffers = threading.local()


def _chunk_buffer(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return uninitialised memory for a chunk, which the next call in this thread returns again."""
    nbytes = math.prod(shape) * dtype.itemsize
    held = getattr(_buffers, "held", None)
    if held is None or len(held) < nbytes:
        held = _buffers.held = np.empty(nbytes, np.uint8)
    chunk: np.ndarray = held[:nbytes].view(dtype).reshape(shape)
    return chunk


def _filter_arguments(compression: Any) -> dict[str, Any]:
    """Return arguments of `create_dataset` for a value of `compression`; raise `StoreError` if it is unknown."""
    if compression is None:
        return {}
    if compression not in COMPRESSIONS:
        raise StoreError(f"unknown compression {compression!r}; known: {', '.join(COMPRESSIONS)}")
    if compression not in PLUGIN_FILTERS:
        return {"compression": compression}
    plugins = _load_plugins()
    if plugins is None:
        raise StoreError(f"compression {compression!r} needs hdf5plugin: pip install 'fair-etl[formats]'")
    return dict(getattr(plugins, PLUGIN_FILTERS[compression])())


def _load_plugins() -> Any:
    """Return hdf5plugin, which registers its filters with HDF5 when it is imported, or None if it is not installed."""
    try:
        import hdf5plugin
    except ImportError:
        return None
    return hdf5plugin


def _open(file: h5py.File, path: Path, column: Column) -> h5py.Dataset:
    """Return the data set of `column`; raise `StoreError` unless it is as the manifest says and in this file."""
    name = column.name
    link = file.get(name, getlink=True)  # checked before file[name], which would open a link's target
    if link is None:
        raise StoreError(f"{path}: has no data set {name!r}")
    if not isinstance(link, h5py.HardLink):
        raise StoreError(f"{path}: {name!r} is a link to somewhere else; a store holds its own data")
    data = file[name]
    if not isinstance(data, h5py.Dataset):
        raise StoreError(f"{path}: {name!r} is not a data set")
    if data.is_virtual or data.external:
        raise StoreError(f"{path}: {name!r} is kept in other files; a store holds its own data")
    if data.dtype.str != column.dtype or data.shape != column.array_shape:
        raise StoreError(
            f"{path}: {name!r} holds {data.dtype} of shape {data.shape}; the manifest says "
            f"{np.dtype(column.dtype)} of shape {column.array_shape}"
        )
    try:
        validate_chunks(data, path.stat().st_size)
    except ValueError as error:
        raise StoreError(f"{path}: {name!r} is refused: {error}; presave the data again") from None
    for each in filter_ids(data):
        if not h5py.h5z.filter_avail(each):
            raise StoreError(
                f"{path}: {name!r} is compressed with HDF5 filter {each}, which is missing here: "
                "pip install 'fair-etl[formats]'"
            )
    return data


def _map(path: Path, data: h5py.Dataset) -> np.ndarray | None:
    """Return the data set as a memory-mapped array; None if it is in chunks, or has no place of its own in the file."""
    if data.size == 0:
        return np.empty(data.shape, data.dtype)
    offset = data.id.get_offset() if data.chunks is None else None
    if offset is None:
        return None
    mapped: np.ndarray = map_file(path)[offset : offset + data.nbytes].view(data.dtype).reshape(data.shape)
    return mapped
