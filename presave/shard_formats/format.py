"""The interface of a storage format, which writes the columns of one shard to files and reads these files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from presave.columns import Column


class ColumnReader(Protocol):
    """One column of a shard. Several threads may use it at once."""

    def gather(self, rows: NDArray[np.int64], out: np.ndarray, slots: NDArray[np.int64] | slice) -> None:
        """Copy row `rows[k]` to `out[slots][k]`, for all k.

        Parameters
        ----------
        rows : int64 array of shape (count,)
            Rows to copy, all of which exist.
        out : array of shape (records, *row shape)
            Gets the rows; of the column's dtype.
        slots : int64 array of shape (count,), or slice of that length
            Positions in `out`.
        """

    def copy_ranges(
        self, starts: NDArray[np.int64], ends: NDArray[np.int64], out: np.ndarray, places: NDArray[np.int64]
    ) -> None:
        """Copy rows `starts[k]` up to `ends[k]` into `out` from row `places[k]` on, for all k.

        Parameters
        ----------
        starts, ends : int64 array of shape (count,)
            Ranges of rows, all of which exist.
        out : array of shape (any number, *row shape)
            Gets the rows; of the column's dtype.
        places : int64 array of shape (count,)
            First row of each range in `out`.
        """

    def locate(self, rows: NDArray[np.int64]) -> tuple[np.ndarray, NDArray[np.int64]]:
        """Return a read-only, C-contiguous array and the positions of `rows` in it, without a copy if possible."""

    def view(self, first: int, last: int) -> np.ndarray:
        """Return rows `first` up to `last` as a read-only array, without a copy if possible."""


class ShardReader(Protocol):
    """One shard, open for reading."""

    def columns(self) -> Mapping[str, ColumnReader]:
        """Return the columns by name.

        A format that has to read whole shards reads the shard here, in each call.
        """

    def close(self) -> None:
        """Release files and memory maps."""


# Raises `StoreError` for a value that the option does not accept.
CheckOption = Callable[[Any], object]


class Format(ABC):
    """A storage format for shards.

    Attributes
    ----------
    name : str
        The name by which users choose it.
    is_trusted_only : bool
        True if reading a file can run code that its author put there.
    reads_whole_shards : bool
        True if `ShardReader.columns` reads the whole shard.
    shard_records : int, optional
        Number of records in a shard; None if it follows from their size.
    has_file_for_each_column : bool
        True if a shard has one file for each column, in the order of the columns; False if it has one file in all.
    options : mapping of str to callable
        The options of the format by name, each with the function that checks a value.
    """

    name: str
    is_trusted_only = False
    reads_whole_shards = False
    shard_records: int | None = None
    has_file_for_each_column = False
    options: Mapping[str, CheckOption] = MappingProxyType({})

    @abstractmethod
    def write_columns(
        self, folder: Path, shard_name: str, columns: Mapping[str, np.ndarray], options: Mapping[str, Any]
    ) -> list[Path]:
        """Write the columns of a shard into new files.

        Parameters
        ----------
        folder : Path
            Where to create the files.
        shard_name : str
            Part of each file's name.
        columns : mapping of str to array
            C-contiguous arrays by name.
        options : mapping of str to object
            Options of the format.

        Returns
        -------
        list of Path
            The new files.
        """

    @abstractmethod
    def open_shard(self, files: Sequence[Path], columns: Sequence[Column]) -> ShardReader:
        """Open the files that `write_columns` returned; raise `StoreError` if one does not have these `columns`."""
