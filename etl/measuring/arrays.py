"""Reads and digests of the arrays of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

PAGE_NBYTES = 4096


def touch(batch: Any) -> int:
    """Read one byte of every page of every array of `batch`.

    Return the sum of these bytes, so that the reads cannot be optimised away.
    """
    total = 0
    for array in batch.arrays():
        content = as_bytes(array)
        # An array that begins inside a page may reach into one page more than its length implies.
        total += int(content[::PAGE_NBYTES].sum(dtype=np.int64)) + int(content[-1:].sum(dtype=np.int64))
    return total


def page_count(batch: Any) -> int:
    """Return the number of pages that `touch` reads, if every array begins at the start of a page."""
    return sum(-(-array.nbytes // PAGE_NBYTES) for array in batch.arrays())


def digest_of(batch: Any) -> str:
    """Return a 128-bit digest of the shapes, dtypes and bytes of `batch`, as hexadecimal digits."""
    digest = BatchDigest()
    digest.update(batch)
    return digest.hexdigest()


def record_digests(batch: Any) -> list[str]:
    """Return a 64-bit digest of the shapes, dtypes and bytes of each record of `batch`, as hexadecimal digits.

    Equal records have equal digests, whatever their position and the size of the batch.
    """
    arrays = [np.ascontiguousarray(array) for array in batch.arrays()]
    heads = [f"{array.dtype}{array.shape[1:]}".encode() for array in arrays]
    found = []
    for row in range(len(batch)):
        digest = xxhash.xxh3_64()
        for head, array in zip(heads, arrays, strict=True):
            digest.update(head)
            digest.update(as_bytes(array[row]).data)
        found.append(digest.hexdigest())
    return found


class BatchDigest:
    """A digest of the shapes, dtypes and bytes of a sequence of batches."""

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()

    def update(self, batch: Any) -> None:
        """Add `batch` to the digest."""
        for array in batch.arrays():
            self._digest.update(f"{array.dtype}{array.shape}".encode())
            self._digest.update(as_bytes(array).data)

    def hexdigest(self) -> str:
        """Return 32 hexadecimal digits."""
        return self._digest.hexdigest()


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return the bytes of `array`, uint8 of shape `(nbytes,)`; a view if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
