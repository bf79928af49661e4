"""Memory for batches, used again when nothing refers to the batch that was in it any more."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

# Below this a fresh array costs less than keeping an old one (malloc serves it without a system call).
MIN_NBYTES = 64 << 10


class BufferPool:
    """Hands out arrays for batches, and takes their memory back when the last reference to one is gone.

    A batch is the caller's for as long as anything refers to it, a view or a tensor that shares its memory included:
    keeping a batch needs no copy and no call. Filling memory that was used before saves page faults: a fresh batch of
    38 MB took 2.5 times as long to fill.

    Parameters
    ----------
    reuse : bool
        Use memory again. Without it every array is a fresh one.
    max_free : int
        Unused arrays that are kept, for each size.
    allocate : callable, optional
        `allocate(nbytes)` returns memory of another kind as a uint8 array; it is freed when nothing refers to it.
    """

    def __init__(self, reuse: bool, max_free: int = 2, allocate: Callable[[int], np.ndarray] | None = None) -> None:
        self.reuse = reuse
        self.max_free = max_free
        self._allocate = allocate
        self._free: dict[int, deque[np.ndarray]] = {}

    def empty(self, count: int, capacity: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array with any content.

        Parameters
        ----------
        count : int
            Records of the batch.
        capacity : int
            Records that the memory has room for, at least `count`.
        shape : tuple of int
            The shape of one record's value.
        dtype : numpy dtype
            The dtype of the array.

        Returns
        -------
        array of shape (count, *shape)
        """
        nbytes = capacity * math.prod(shape) * dtype.itemsize
        if self._allocate is None and (not self.reuse or nbytes < MIN_NBYTES):
            return np.empty((count, *shape), dtype)
        nbytes = round_up(nbytes)
        memory = np.asarray(_Loan(self, self._find(nbytes))) if self.reuse else self._find(nbytes)
        return memory[: count * math.prod(shape) * dtype.itemsize].view(dtype).reshape(count, *shape)

    def give_back(self, memory: np.ndarray) -> None:
        """Keep `memory` for another batch. It takes no lock: the garbage collector may call this anywhere."""
        free = self._free.get(memory.nbytes)
        if free is not None and len(free) < self.max_free:
            free.append(memory)

    def clear(self) -> None:
        """Free unused memory; memory of batches that live is freed with them."""
        self._free = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"reuse": self.reuse, "max_free": self.max_free, "_allocate": None, "_free": {}}

    def _find(self, nbytes: int) -> np.ndarray:
        try:
            return self._free.setdefault(nbytes, deque()).pop()  # the last one back is the likeliest to be in the cache
        except IndexError:
            return np.empty(nbytes, np.uint8) if self._allocate is None else self._allocate(nbytes)


def round_up(nbytes: int) -> int:
    """Return `nbytes` rounded up to one of four sizes for each power of two.

    Batches that are padded to many lengths then share memory of few sizes.
    """
    unit = 1 << max(0, nbytes.bit_length() - 3)
    return -(-nbytes // unit) * unit


class _Loan:
    """The base of an array in lent memory: numpy drops it with the last view."""

    def __init__(self, owner: BufferPool, memory: np.ndarray) -> None:
        self._owner = owner
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._owner.give_back(self._memory)
