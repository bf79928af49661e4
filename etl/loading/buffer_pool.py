"""Memory for batches, used again once nobody refers to the batch that was in it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

# Below this a fresh array costs less than keeping an old one (malloc serves it without a system call).
SMALLEST_NBYTES = 64 << 10


class Workspaces:
    """Hands out arrays for batches, and with `reuse` takes their memory back when the last reference to one is gone.

    A batch is the caller's for as long as anything of it is referred to: a view, or a tensor that shares its memory,
    counts, so keeping one needs no copy and no call. Filling memory that was used before spares its page faults; a
    fresh batch of 38 MB took 2.5 times as long to fill. At most `most_free` unused arrays of a size are kept.

    `allocate(nbytes)` gives memory of another kind as a uint8 array, which goes back when nothing refers to it.
    """

    def __init__(self, reuse: bool, most_free: int = 2, allocate: Callable[[int], np.ndarray] | None = None) -> None:
        self.reuse = reuse
        self.most_free = most_free
        self._allocate = allocate
        self._free: dict[int, deque[np.ndarray]] = {}

    def empty(self, count: int, most: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of shape `(count, *shape)` with any content, in memory for `most` of them."""
        nbytes = most * math.prod(shape) * dtype.itemsize
        if self._allocate is None and (not self.reuse or nbytes < SMALLEST_NBYTES):
            return np.empty((count, *shape), dtype)
        nbytes = round_up(nbytes)
        memory = np.asarray(_Loan(self, self._find(nbytes))) if self.reuse else self._find(nbytes)
        return memory[: count * math.prod(shape) * dtype.itemsize].view(dtype).reshape(count, *shape)

    def give_back(self, memory: np.ndarray) -> None:
        """Keep `memory` for another batch. Takes no lock: the garbage collector may call this anywhere."""
        free = self._free.get(memory.nbytes)
        if free is not None and len(free) < self.most_free:
            free.append(memory)

    def clear(self) -> None:
        """Let go of what is unused; what is still lent goes when its batch does."""
        self._free = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"reuse": self.reuse, "most_free": self.most_free, "_allocate": None, "_free": {}}

    def _find(self, nbytes: int) -> np.ndarray:
        try:
            return self._free.setdefault(nbytes, deque()).pop()  # the last one back is the likeliest to be in the cache
        except IndexError:
            return np.empty(nbytes, np.uint8) if self._allocate is None else self._allocate(nbytes)


def round_up(nbytes: int) -> int:
    """`nbytes` rounded up to one of four sizes for each power of two, so that batches that are padded to many lengths
    share memory of few sizes.
    """
    unit = 1 << max(0, nbytes.bit_length() - 3)
    return -(-nbytes // unit) * unit


class _Loan:
    """What an array made from memory on loan refers to: numpy lets go of it with the last view."""

    def __init__(self, owner: Workspaces, memory: np.ndarray) -> None:
        self._owner = owner
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._owner.give_back(self._memory)
