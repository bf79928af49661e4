"""An object that is pickled once and read by several processes, its large arrays out of memory that they share."""

from __future__ import annotations

import mmap
import os
import pickle
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

ALIGNMENT_NBYTES = 64
# What is smaller goes into the pickle: finding it again costs more than copying it.
SMALLEST_NBYTES = 64 << 10

# First and last byte of the pickle, and of each array that belongs to it.
Parts = list[tuple[int, int]]


class SharedObject:
    """`thing` in anonymous memory: `load_shared(fd, parts)` gives a copy of it in another process.

    Functions and classes of the program's own script go with it. Raises whatever pickling `thing` raises.
    """

    def __init__(self, thing: Any) -> None:
        buffers: list[memoryview] = []

        def keep_in_pickle(buffer: pickle.PickleBuffer) -> bool:
            view = buffer.raw()
            if view.nbytes < SMALLEST_NBYTES:
                return True
            buffers.append(view)
            return False

        data = cloudpickle.dumps(thing, protocol=5, buffer_callback=keep_in_pickle)
        self.parts: Parts = []
        end = 0
        for view in (data, *buffers):
            first = -(-end // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES
            end = first + len(view)
            self.parts.append((first, end))
        self.fd = os.memfd_create("etl-loader")
        try:
            os.ftruncate(self.fd, end)
            with mmap.mmap(self.fd, end) as mapping:
                for view, (first, last) in zip((data, *buffers), self.parts, strict=True):
                    mapping[first:last] = view
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close its descriptor; who has loaded it keeps it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def load_shared(fd: int, parts: Parts) -> Any:
    """The object, whose large arrays are in memory that is copied where it is written to, page by page."""
    view = memoryview(mmap.mmap(fd, parts[-1][1], access=mmap.ACCESS_COPY))
    data, *buffers = (view[first:last] for first, last in parts)
    return pickle.loads(data, buffers=buffers)  # noqa: S301 - the very bytes that the parent process has made
