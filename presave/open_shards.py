"""The shards of a store that are open: which one holds a record, and what its columns are read through."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from presave import forks
from presave.columns import Column, shard_columns
from presave.errors import StoreError
from presave.formats import ColumnReader, Format, ShardReader
from presave.formats.arrays import ArrayColumn, ArrayShard
from presave.manifest import Manifest
from presave.mapped_rows import MappedRows
from presave.plain_file import why_not_own

Columns = Mapping[str, ColumnReader]


class OpenShards:
    """Opens each shard when something of it is first read. May be used by several threads at once."""

    def __init__(self, path: Path, manifest: Manifest, format: Format, trusted: bool) -> None:
        self._path = path
        self._trusted = trusted
        self._manifest = manifest
        self._format = format
        counts = [shard.records for shard in manifest.shards]
        self.first_records = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        """The number of each shard's first record, and of one after the last shard's last: int64."""
        self._readers: dict[int, ShardReader] = {}
        # What was read from last: a format that reads shards whole would otherwise do so for every record of a row.
        self._recent: tuple[int, Columns] | None = None
        self._mapped_rows: dict[str, MappedRows] = {}
        self._lock = threading.Lock()
        self._closed = False

    def columns(self, shard: int) -> Columns:
        """What the columns of `shard` are read through; raises `StoreError` where it is damaged."""
        recent = self._recent
        if recent is not None and recent[0] == shard:
            return recent[1]
        while True:
            reader = self._reader(shard)
            columns = reader.columns()
            if self._readers.get(shard) is reader:
                break
            # Closed or replaced by another thread in between: its columns may be gone.
        self._recent = (shard, columns)
        return columns

    def split(self, numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray | slice]]:
        """Split records by shard: shard, rows in it, and their places in `numbers`."""
        if not len(numbers):
            return
        # Sorted once: a shuffled batch has a row or two from each of dozens of shards, and a pass for each adds up.
        shards = self.first_records.searchsorted(numbers, "right") - 1
        order = np.argsort(shards, kind="stable")
        shards = shards[order]
        rows = numbers[order] - self.first_records[shards]
        bounds = [0, *(np.flatnonzero(shards[1:] != shards[:-1]) + 1).tolist(), len(order)]
        for shard, first, end in zip(shards[bounds[:-1]].tolist(), bounds, bounds[1:], strict=False):
            low, high = int(order[first]), int(order[end - 1]) + 1
            yield shard, rows[first:end], slice(low, high) if high - low == end - first else order[first:end]

    def copy_rows(self, column: str, numbers: np.ndarray, out: np.ndarray) -> bool:
        """Copy rows of `column` straight out of shards that are arrays; False as `MappedRows.copy`."""
        rows = self._mapped_rows.get(column)
        if rows is None:
            rows = self._mapped_rows.setdefault(column, MappedRows(self.first_records))
        return rows.copy(numbers, out, lambda shard: self._array(shard, column))

    def layout(self, shard: int) -> list[Column]:
        """The columns that `shard` has."""
        described = self._manifest.shards[shard]
        return shard_columns(self._manifest.schema, described.records, described.elements)

    def hold(self, shard: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Read `shard` from `arrays` from now on, and not from its files."""
        with forks.held_off(), self._lock:
            self._readers.pop(shard).close()
            self._readers[shard] = ArrayShard(arrays)
            self._recent = None
            self._mapped_rows = {}  # and not cleared: whoever copies from arrays now needs them

    def check_open(self) -> None:
        """Raise `StoreError` once they are closed."""
        if self._closed:
            raise StoreError(f"{self._path} is closed")

    def close(self) -> None:
        """Close all files. Closing twice does nothing."""
        self._closed = True
        with forks.held_off(), self._lock:
            self._recent = None
            self._mapped_rows = {}  # and not cleared: whoever copies from arrays now needs them
            # Gone before they are closed: `columns` looks whether what it has found is still there.
            readers, self._readers = self._readers, {}
            for reader in readers.values():
                reader.close()

    def _array(self, shard: int, column: str) -> np.ndarray | None:
        reader = self.columns(shard)[column]
        if not isinstance(reader, ArrayColumn) or len(reader.array) != self._manifest.shards[shard].records:
            return None
        return reader.array if reader.array.flags.c_contiguous else None

    def _reader(self, shard: int) -> ShardReader:
        reader = self._readers.get(shard)
        if reader is None:
            with forks.held_off(), self._lock:
                self.check_open()  # closed by another thread, since the gather began
                reader = self._readers.get(shard)
                if reader is None:
                    reader = self._readers[shard] = self._open(shard)
        return reader

    def _open(self, shard: int) -> ShardReader:
        files = [self._path / file.name for file in self._manifest.shards[shard].files]
        layout = self.layout(shard)
        expected = len(layout) if self._format.has_file_for_each_column else 1
        if len(files) != expected:
            raise StoreError(
                f"{self._path}: the manifest names {len(files)} files for shard {shard}, "
                f"format {self._format.name!r} has {expected}; `etl verify` lists all that is damaged"
            )
        for file in files:
            reason = why_not_own(file, links=self._trusted)
            if reason is not None:
                raise StoreError(f"{file} {reason}")
        return self._format.open_shard(files, layout)
