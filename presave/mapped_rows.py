"""Finding and copying rows of one column in shards that are memory-mapped or in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from presave.compiled import Compiled
from presave.shard_formats.arrays import SMALL_ROW_NBYTES

FindArray = Callable[[int], "np.ndarray | None"]

UINT8 = np.dtype(np.uint8)
# A program that only reads a few records should not pay for loading numba.
GATHERS_BEFORE_COMPILED = 32


def _load() -> ModuleType:
    from presave import mapped_rows_numba

    return mapped_rows_numba


COMPILED = Compiled(_load)


class MappedRows:
    """The rows of a fixed field in all shards of a store.

    Every array that was read from is kept, so that none is unmapped while a thread copies from it.

    Parameters
    ----------
    first_records : int64 array of shape (shards + 1,)
        Index of each shard's first record, and the number of records in the store.
    """

    def __init__(self, first_records: NDArray[np.int64]) -> None:
        self._first_records = first_records
        self._arrays: dict[int, np.ndarray] = {}
        self._addresses = np.zeros(len(first_records) - 1, np.int64)
        self._gathers = 0

    def copy(self, indices: NDArray[np.int64], out: np.ndarray, find_array: FindArray) -> bool:
        """Copy rows into `out`, if all shards that hold them are arrays.

        Parameters
        ----------
        indices : int64 array of shape (records,)
            Records to copy. The caller has checked that they exist.
        out : array of shape (records, *row shape)
            Gets the rows; of the column's dtype.
        find_array : callable
            Called with the index of a shard that was not read before. Returns its C-contiguous array, or None if the
            shard is not an array.

        Returns
        -------
        bool
            False if the caller must gather all rows in another way: a shard is not an array, or the rows are small and
            the compiled loop is not loaded. Some rows of `out` may have been written.
        """
        # Bound by memory bandwidth (benchmarks/gather.py): copying 64 images of 147 KiB took 720 microseconds. To that,
        # `take` adds nothing that can be measured. From several shards, NumPy and the interpreter add 180; the compiled
        # loop adds 50, and takes a quarter of their time for labels.
        if not len(indices):
            return True
        if len(self._starts) == 2 and out.flags.c_contiguous:
            array = self._array(0, find_array)
            if array is None:
                return False
            np.take(array, indices, axis=0, out=out, mode="clip")  # with "raise", through a buffer
            return True
        if COMPILED.module is not None and out.flags.c_contiguous:
            nbytes = out.nbytes // len(indices)
            rows = self.find(indices, nbytes, find_array)
            if rows is not None:
                COMPILED.module.copy_rows(rows, nbytes, out.reshape(-1).view(UINT8))
            return rows is not None
        self._gathers += 1
        if self._gathers >= GATHERS_BEFORE_COMPILED:
            COMPILED.begin()
        if out[:1].nbytes <= SMALL_ROW_NBYTES:
            return False
        slices = self._slices(indices, find_array)
        if slices:
            np.concatenate(slices, out=out)
        return slices is not None

    def find(self, indices: NDArray[np.int64], nbytes: int, find_array: FindArray) -> np.ndarray | None:
        """Return the addresses of rows of `nbytes` bytes, an int64 array of shape (records,); see `copy`.

        None if a shard is not an array, or the compiled loop is not loaded, which then begins. The addresses are valid
        while this object exists.
        """
        module = COMPILED.module
        if module is None:
            COMPILED.begin()
            return None
        indices = np.ascontiguousarray(indices)
        rows, slot = np.empty(len(indices), np.int64), 0
        while True:
            slot = module.find_rows(indices, self._first_records, self._addresses, nbytes, rows, slot)
            if slot == len(indices):
                return rows
            shard = bisect_right(self._starts, indices[slot]) - 1
            array = self._array(shard, find_array)
            if array is None:
                return None
            self._addresses[shard] = array.ctypes.data

    def _slices(self, indices: NDArray[np.int64], find_array: FindArray) -> list[np.ndarray] | None:
        """Return the rows in the order of `indices`, as one view of a shard for each run of consecutive records."""
        # Plain Python: just after large copies have emptied the CPU caches, each NumPy call takes 5 microseconds.
        starts = self._starts
        slices = []
        array: np.ndarray | None = None
        first = end = shard_first = shard_end = -1
        for index in indices.tolist():
            if index == end and index < shard_end:
                end += 1
                continue
            if array is not None:
                slices.append(array[first - shard_first : end - shard_first])
            shard = bisect_right(starts, index) - 1
            array = self._array(shard, find_array)
            if array is None:
                return None
            shard_first, shard_end = starts[shard], starts[shard + 1]
            first, end = index, index + 1
        if array is not None:
            slices.append(array[first - shard_first : end - shard_first])
        return slices

    def _array(self, shard: int, find_array: FindArray) -> np.ndarray | None:
        array = self._arrays.get(shard)
        if array is None and (found := find_array(shard)) is not None:
            array = self._arrays.setdefault(shard, found)  # that of the first thread, which may be copying from it
        return array

    @cached_property
    def _starts(self) -> list[int]:
        return [int(index) for index in self._first_records]
