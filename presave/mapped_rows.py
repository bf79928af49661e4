"""Rows of one column, copied straight out of the shards that are mapped or in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property
from types import ModuleType

import numpy as np

from presave.compiled import Compiled
from presave.formats.arrays import SMALL_ROW_NBYTES

FindArray = Callable[[int], "np.ndarray | None"]

UINT8 = np.dtype(np.uint8)
# Who reads a record or two is not kept for the time that numba takes to load.
GATHERS_BEFORE_COMPILED = 32


def _load() -> ModuleType:
    from presave import copy_rows_numba

    return copy_rows_numba


COMPILED = Compiled(_load)


class MappedRows:
    """The rows of a fixed field.

    Holds all arrays that it has read from, so that they stay mapped for as long as somebody copies from them.
    """

    def __init__(self, first_records: np.ndarray) -> None:
        self._first_records = first_records
        self._arrays: dict[int, np.ndarray] = {}
        self._addresses = np.zeros(len(first_records) - 1, np.int64)
        self._gathers = 0

    def copy(self, numbers: np.ndarray, out: np.ndarray, find_array: FindArray) -> bool:
        """Copy the rows of `numbers`, int64 and all there, into `out`, which fits. False if that is for another: where
        a shard is no array, or rows are small and numba is not there.

        `find_array` gives the array of a shard that was not read from yet, C-contiguous, or None where it has none.
        """
        # Bound by memory (benchmarks/gather.py): of 64 images of 147 KiB that took 720 microseconds, numpy and the
        # interpreter took another 180, and the compiled loop 50, most of it for the checks before.
        if COMPILED.module is not None and out.flags.c_contiguous:
            return self._copy_compiled(COMPILED.module, numbers, out, find_array)
        self._gathers += 1
        if self._gathers >= GATHERS_BEFORE_COMPILED:
            COMPILED.begin()
        if out[:1].nbytes <= SMALL_ROW_NBYTES:
            return False
        slices = self._slices(numbers, find_array)
        if slices:
            np.concatenate(slices, out=out)
        return slices is not None

    def _copy_compiled(self, module: ModuleType, numbers: np.ndarray, out: np.ndarray, find_array: FindArray) -> bool:
        numbers = np.ascontiguousarray(numbers)
        if not len(numbers):
            return True
        target, nbytes, slot = out.reshape(-1).view(UINT8), out.nbytes // len(numbers), 0
        while True:
            slot = module.copy_rows(numbers, self._first_records, self._addresses, nbytes, target, slot)
            if slot == len(numbers):
                return True
            if self._array(bisect_right(self._starts, numbers[slot]) - 1, find_array) is None:
                return False

    def _slices(self, numbers: np.ndarray, find_array: FindArray) -> list[np.ndarray] | None:
        """The rows in the order of `numbers`, one view of a shard for each run of consecutive records."""
        # Without numpy: each of its calls takes 5 microseconds where large copies have just emptied the caches.
        starts = self._starts
        slices = []
        array: np.ndarray | None = None
        first = end = shard_first = shard_end = -1
        for number in numbers.tolist():
            if number == end and number < shard_end:
                end += 1
                continue
            if array is not None:
                slices.append(array[first - shard_first : end - shard_first])
            shard = bisect_right(starts, number) - 1
            array = self._array(shard, find_array)
            if array is None:
                return None
            shard_first, shard_end = starts[shard], starts[shard + 1]
            first, end = number, number + 1
        if array is not None:
            slices.append(array[first - shard_first : end - shard_first])
        return slices

    def _array(self, shard: int, find_array: FindArray) -> np.ndarray | None:
        array = self._arrays.get(shard)
        if array is None:
            array = find_array(shard)
            if array is not None:
                self._arrays[shard] = array  # before its address, which holds nothing
                self._addresses[shard] = array.ctypes.data
        return array

    @cached_property
    def _starts(self) -> list[int]:
        return [int(number) for number in self._first_records]
