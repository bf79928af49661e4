"""The open shards of a store: which shard holds a record, and readers for its columns."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from presave import forks
from presave.columns import Column, shard_columns
from presave.errors import StoreError
from presave.files import unsupported_reason
from presave.manifest import Manifest
from presave.manifest_file import load_manifest, manifest_stamp
from presave.mapped_rows import MappedRows
from presave.shard_formats import ColumnReader, Format, ShardReader
from presave.shard_formats.arrays import ArrayColumn, ArrayShard

Columns = Mapping[str, ColumnReader]


class OpenShards:
    """The shards of a store, each opened when it is first read. Several threads may use it at once.

    `stamp` is the `manifest_stamp` from before the manifest was read.

    Attributes
    ----------
    first_records : int64 array of shape (shards + 1,)
        Index of each shard's first record. The last entry is the number of records in the store.
    """

    def __init__(
        self, path: Path, manifest: Manifest, format: Format, trusted: bool, stamp: tuple[int, int] | None
    ) -> None:
        self._path = path
        self._stamp = stamp
        self._trusted = trusted
        self._manifest = manifest
        self._format = format
        counts = [shard.records for shard in manifest.shards]
        self.first_records = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._readers: dict[int, ShardReader] = {}
        # The shard that was read last. Without it, a format that reads whole shards would read a shard for each record.
        self._recent: tuple[int, Columns] | None = None
        self._mapped_rows: dict[str, MappedRows] = {}
        self._lock = threading.Lock()
        self._closed = False

    def columns(self, shard: int) -> Columns:
        """Return a reader for each column of `shard`, by name.

        Raises `StoreError` if the shard is damaged, or of a store that was written again since this one was opened.
        """
        recent = self._recent
        if recent is not None and recent[0] == shard:
            return recent[1]
        while True:
            reader = self._reader(shard)
            if self._format.reads_whole_shards and not isinstance(reader, ArrayShard):  # the file is read now
                self._check_unchanged()
            columns = reader.columns()
            if self._readers.get(shard) is reader:
                break
            # Another thread has closed or replaced the shard meanwhile, so these columns may be gone.
        self._recent = (shard, columns)
        return columns

    def split(self, indices: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64] | slice]]:
        """Yield `(shard, rows, slots)` for each shard that holds some of the records.

        `rows` are rows of the shard, and `slots` their positions in `indices`: an int64 array, or a slice if they are
        consecutive.
        """
        if not len(indices):
            return
        # One sort instead of a pass over `indices` per shard: a shuffled batch has a row or two from each of dozens.
        shards = self.first_records.searchsorted(indices, "right") - 1
        order = np.argsort(shards, kind="stable")
        shards = shards[order]
        rows = indices[order] - self.first_records[shards]
        bounds = [0, *(np.flatnonzero(shards[1:] != shards[:-1]) + 1).tolist(), len(order)]
        for shard, first, end in zip(shards[bounds[:-1]].tolist(), bounds, bounds[1:], strict=False):
            low, high = int(order[first]), int(order[end - 1]) + 1
            yield shard, rows[first:end], slice(low, high) if high - low == end - first else order[first:end]

    def copy_rows(self, column: str, indices: NDArray[np.int64], out: np.ndarray) -> bool:
        """Copy rows straight out of shards that are arrays, if that is possible; see `MappedRows.copy`."""
        return self._rows(column).copy(indices, out, lambda shard: self._array(shard, column))

    def find_rows(self, column: str, indices: NDArray[np.int64], nbytes: int) -> tuple[np.ndarray, object] | None:
        """Return the addresses of rows, and what has to be kept while they are read; None as `MappedRows.find`."""
        rows = self._rows(column)
        addresses = rows.find(indices, nbytes, lambda shard: self._array(shard, column))
        return None if addresses is None else (addresses, rows)

    def column_specs(self, shard: int) -> list[Column]:
        """Return the columns of `shard` as its manifest describes them."""
        described = self._manifest.shards[shard]
        return shard_columns(self._manifest.schema, described.records, described.elements)

    def replace(self, shard: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Read `shard` from `arrays` from now on, instead of from its files."""
        with forks.held_off(), self._lock:
            self._readers.pop(shard).close()
            self._readers[shard] = ArrayShard(arrays)
            self._recent = None
            self._mapped_rows = {}  # a new dict: threads that are copying still need the old one

    def check_open(self) -> None:
        """Raise `StoreError` if the shards were closed."""
        if self._closed:
            raise StoreError(f"{self._path} is closed")

    def close(self) -> None:
        """Close all files. Closing twice does nothing."""
        self._closed = True
        with forks.held_off(), self._lock:
            self._recent = None
            self._mapped_rows = {}  # a new dict: threads that are copying still need the old one
            # Readers are removed before they are closed, because `columns` checks that its reader is still registered.
            readers, self._readers = self._readers, {}
            for reader in readers.values():
                reader.close()

    def _rows(self, column: str) -> MappedRows:
        rows = self._mapped_rows.get(column)
        return self._mapped_rows.setdefault(column, MappedRows(self.first_records)) if rows is None else rows

    def _array(self, shard: int, column: str) -> np.ndarray | None:
        reader = self.columns(shard)[column]
        if not isinstance(reader, ArrayColumn) or len(reader.array) != self._manifest.shards[shard].records:
            return None
        return reader.array if reader.array.flags.c_contiguous else None

    def _reader(self, shard: int) -> ShardReader:
        reader = self._readers.get(shard)
        if reader is None:
            with forks.held_off(), self._lock:
                self.check_open()  # another thread may have closed the store since the gather began
                reader = self._readers.get(shard)
                if reader is None:
                    reader = self._readers[shard] = self._open(shard)
        return reader

    def _check_unchanged(self) -> None:
        stamp = manifest_stamp(self._path)
        if stamp is None or stamp != self._stamp:
            if load_manifest(self._path).shards != self._manifest.shards:
                raise StoreError(f"{self._path}: was written again since it was opened; open it again")
            self._stamp = stamp

    def _open(self, shard: int) -> ShardReader:
        self._check_unchanged()
        files = [self._path / file.name for file in self._manifest.shards[shard].files]
        columns = self.column_specs(shard)
        expected = len(columns) if self._format.has_file_for_each_column else 1
        if len(files) != expected:
            raise StoreError(
                f"{self._path}: the manifest names {len(files)} files for shard {shard}, "
                f"format {self._format.name!r} has {expected}; `etl verify` lists all that is damaged"
            )
        for file in files:
            reason = unsupported_reason(file, allow_links=self._trusted)
            if reason is not None:
                raise StoreError(f"{file} {reason}")
        return self._format.open_shard(files, columns)
