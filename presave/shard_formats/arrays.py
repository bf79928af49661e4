"""Readers for shards whose columns are arrays, in memory or mapped from a file. Most formats use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from presave.columns import Column
from presave.errors import StoreError, is_shortage, shortage_error
from presave.shard_formats.format import ColumnReader

# Rows up to this size are gathered by one fancy index. Larger rows are copied one by one, to avoid a temporary array.
SMALL_ROW_NBYTES = 4096


class ArrayColumn:
    """A column that is an array.

    Attributes
    ----------
    array : array of shape (rows, *row shape)
        Read-only.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array.view()
        self.array.flags.writeable = False
        self._has_small_rows = array[:1].nbytes <= SMALL_ROW_NBYTES

    def gather(self, rows: NDArray[np.int64], out: np.ndarray, slots: NDArray[np.int64] | slice) -> None:
        # Large rows come here only if the format reads whole shards; otherwise `MappedRows` copies them in one call.
        if isinstance(slots, slice):
            # "clip", because NumPy's default mode would gather into a temporary array first; the store has checked the
            # rows. The method takes a third of the time of np.take, which matters for batches from dozens of shards.
            self.array.take(rows, 0, out[slots], "clip")
        elif self._has_small_rows:
            out[slots] = self.array[rows]
        else:
            for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
                out[slot] = self.array[row]

    def copy_ranges(
        self, starts: NDArray[np.int64], ends: NDArray[np.int64], out: np.ndarray, places: NDArray[np.int64]
    ) -> None:
        for start, end, place in zip(starts.tolist(), ends.tolist(), places.tolist(), strict=True):
            out[place : place + end - start] = self.array[start:end]

    def locate(self, rows: NDArray[np.int64]) -> tuple[np.ndarray, NDArray[np.int64]]:
        return self.array, rows

    def view(self, first: int, last: int) -> np.ndarray:
        return self.array[first:last]


class ArrayShard:
    """A shard whose columns stay in memory, or mapped, while it is open."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._columns: dict[str, ColumnReader] = {name: ArrayColumn(array) for name, array in arrays.items()}

    def columns(self) -> Mapping[str, ColumnReader]:
        return self._columns

    def close(self) -> None:
        # A memory map closes with the last array that views it. It is not closed here, because callers may hold views.
        self._columns = {}


def validate_arrays(path: Path, arrays: Mapping[str, np.ndarray], columns: Sequence[Column]) -> dict[str, np.ndarray]:
    """Return the arrays of a file, C-contiguous, one for each column of the manifest.

    Raises `StoreError` if one is missing, or has another dtype or shape.
    """
    file_nbytes = path.stat().st_size
    checked = {}
    for column in columns:
        if column.nbytes > file_nbytes:  # an array with strides of 0 has any size in a few bytes
            raise StoreError(
                f"{path}: has {file_nbytes:,} bytes; the manifest says {column.nbytes:,} for {column.name!r} alone"
            )
        array = arrays.get(column.name)
        if not isinstance(array, np.ndarray) or array.dtype.str != column.dtype or array.shape != column.array_shape:
            found = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else "nothing"
            raise StoreError(
                f"{path}: column {column.name!r} holds {found}; the manifest says "
                f"{np.dtype(column.dtype)} of shape {column.array_shape}"
            )
        # Another program may have written arrays in Fortran order.
        checked[column.name] = np.ascontiguousarray(array)
    return checked


@contextmanager
def read_errors(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Raise `StoreError`, which names the file `path`, for `errors` of the block, which reads it."""
    try:
        yield
    except StoreError:
        raise
    except errors as error:
        if is_shortage(error):
            raise shortage_error(path) from error
        raise StoreError(f"{path}: cannot be read ({error}); `etl verify` lists all that is damaged") from error
