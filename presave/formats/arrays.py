"""Columns that are arrays, in memory or mapped from a file: what most formats come down to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from presave.columns import Column
from presave.errors import StoreError
from presave.formats.format import ColumnReader

# Rows up to this many bytes are gathered by one fancy index; larger ones by one copy each, which spares a temporary.
SMALL_ROW_NBYTES = 4096


class ArrayColumn:
    """A column over an array of shape `(rows, *row shape)`."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array.view()
        """Read-only."""
        self.array.flags.writeable = False
        self._has_small_rows = array[:1].nbytes <= SMALL_ROW_NBYTES

    def gather(self, rows: np.ndarray, out: np.ndarray, slots: np.ndarray | slice) -> None:
        # Large rows come here only where shards are read whole; of others `Store.gather` copies all in one call.
        if isinstance(slots, slice):
            # mode="raise" would make numpy gather into a temporary first; the store has checked the rows. The method
            # takes a third of the time of np.take, which shows where a batch is spread over dozens of shards.
            self.array.take(rows, 0, out[slots], "clip")
        elif self._has_small_rows:
            out[slots] = self.array[rows]
        else:
            for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
                out[slot] = self.array[row]

    def copy_ranges(self, starts: np.ndarray, ends: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
        for start, end, place in zip(starts.tolist(), ends.tolist(), places.tolist(), strict=True):
            out[place : place + end - start] = self.array[start:end]

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.array, rows

    def view(self, first: int, last: int) -> np.ndarray:
        return self.array[first:last]


class ArrayShard:
    """A shard whose columns are arrays for as long as it is open."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._columns: dict[str, ColumnReader] = {name: ArrayColumn(array) for name, array in arrays.items()}

    def columns(self) -> Mapping[str, ColumnReader]:
        return self._columns

    def close(self) -> None:
        # A map closes with the last array that views it; dropping ours is all that is safe.
        self._columns = {}


class LoadedShard:
    """A shard that is read whole, each time that something of it is wanted."""

    def __init__(self, load: Callable[[], Mapping[str, np.ndarray]]) -> None:
        self._load = load

    def columns(self) -> Mapping[str, ColumnReader]:
        return ArrayShard(self._load()).columns()

    def close(self) -> None:
        """Nothing is held."""


def check_arrays(path: Path, arrays: Mapping[str, np.ndarray], columns: Sequence[Column]) -> dict[str, np.ndarray]:
    """The arrays of `columns`; raises `StoreError` where one is missing or not of its dtype and shape."""
    room = path.stat().st_size
    checked = {}
    for column in columns:
        if column.nbytes > room:  # axes of stride 0 would make a few bytes as many as one likes
            raise StoreError(
                f"{path}: has {room:,} bytes; the manifest says {column.nbytes:,} for {column.name!r} alone"
            )
        array = arrays.get(column.name)
        if not isinstance(array, np.ndarray) or array.dtype.str != column.dtype or array.shape != column.array_shape:
            found = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else "nothing"
            raise StoreError(
                f"{path}: column {column.name!r} holds {found}; the manifest says "
                f"{np.dtype(column.dtype)} of shape {column.array_shape}"
            )
        # Other programs may have written the axes in another order.
        checked[column.name] = np.ascontiguousarray(array)
    return checked


def unreadable(path: Path, error: BaseException) -> StoreError:
    """The error for a file that cannot be read."""
    return StoreError(f"{path}: cannot be read ({error}); `etl verify` lists all that is damaged")
