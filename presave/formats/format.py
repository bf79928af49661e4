"""What a storage format is: how the columns of one shard are written, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from presave.columns import Column


class ColumnReader(Protocol):
    """One column of a shard. May be used by several threads at once."""

    def gather(self, rows: np.ndarray, out: np.ndarray, slots: np.ndarray | slice) -> None:
        """Write row `rows[k]` into `out[slots][k]`, for all k.

        `rows` is int64 of shape `(count,)`; `out` has the dtype of the column and shape `(records, *row shape)`.
        """

    def copy_ranges(self, starts: np.ndarray, ends: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
        """Write rows `starts[k]` to `ends[k]` into `out` from row `places[k]` on, for all k; all int64."""

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A read-only, C-contiguous array and where in it `rows` stand: without a copy where the format allows that."""

    def view(self, first: int, last: int) -> np.ndarray:
        """Rows `first` to `last`: read-only, and without a copy where the format allows that."""


class ShardReader(Protocol):
    """One shard, open for reading."""

    def columns(self) -> Mapping[str, ColumnReader]:
        """Its columns by name. A format that must read all of a shard does so here, and the caller lets it go again."""

    def close(self) -> None:
        """Give back files and mappings."""


# Raises `StoreError` for a value that the option cannot have.
CheckOption = Callable[[Any], object]


class Format(Protocol):
    """A way to keep shards on disk."""

    name: str
    is_trusted_only: bool
    """Whether reading it can run code that somebody put into the file."""
    reads_whole_shards: bool
    """Whether `ShardReader.columns` reads all of a shard."""
    shard_records: int | None
    """How many records a shard has, where the format says so; None leaves it to their size."""

    has_file_for_each_column: bool
    """Whether a shard is a file for each column, in their order; otherwise it is one file."""
    options: Mapping[str, CheckOption]
    """The options that it has, and for each what refuses a value."""

    def write_columns(
        self, folder: Path, shard_name: str, columns: Mapping[str, np.ndarray], options: Mapping[str, Any]
    ) -> list[Path]:
        """Write the contiguous arrays `columns` into new files of `folder`, all named after `shard_name`."""

    def open_shard(self, files: Sequence[Path], columns: Sequence[Column]) -> ShardReader:
        """Open the files that `write_columns` made; raises `StoreError` naming one that is not what it must be."""
