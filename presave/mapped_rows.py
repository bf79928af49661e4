"""Copying rows of one column straight out of shards that are memory-mapped or in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property

import numpy as np

from presave.shard_formats.arrays import SMALL_ROW_NBYTES

FindArray = Callable[[int], "np.ndarray | None"]


class MappedRows:
    """The rows of a fixed field in all shards of a store.

    Every array that was read from is kept, so that none is unmapped while a thread copies from it.

    Parameters
    ----------
    first_records : int64 array of shape (shards + 1,)
        Index of each shard's first record, and the number of records in the store.
    """

    def __init__(self, first_records: np.ndarray) -> None:
        self._first_records = first_records
        self._arrays: dict[int, np.ndarray] = {}

    def copy(self, indices: np.ndarray, out: np.ndarray, find_array: FindArray) -> bool:
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
            False if the caller must gather all rows in another way: a shard is not an array, or several have the rows,
            and these are small. Some rows of `out` may have been written.
        """
        # Bound by memory bandwidth (benchmarks/gather.py). From several shards of images it takes a tenth longer.
        if not len(indices):
            return True
        starts = self._starts
        shard = bisect_right(starts, int(indices.min())) - 1
        if int(indices.max()) < starts[shard + 1] and out.flags.c_contiguous:
            array = self._array(shard, find_array)
            if array is None:
                return False
            # With "raise", rows would go through a buffer.
            np.take(array, indices - starts[shard], axis=0, out=out, mode="clip")
            return True
        if out[:1].nbytes <= SMALL_ROW_NBYTES:
            return False
        slices = self._slices(indices, find_array)
        if slices:
            np.concatenate(slices, out=out)
        return slices is not None

    def _slices(self, indices: np.ndarray, find_array: FindArray) -> list[np.ndarray] | None:
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
        if array is None:
            array = find_array(shard)
            if array is not None:
                self._arrays[shard] = array
        return array

    @cached_property
    def _starts(self) -> list[int]:
        return [int(index) for index in self._first_records]
