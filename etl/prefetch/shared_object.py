"""An object that is pickled once and loaded by several processes, which share the memory of its large arrays."""

from __future__ import annotations

import mmap
import os
import pickle
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

ALIGNMENT_NBYTES = 64
# Smaller arrays go into the pickle: a separate place for them would cost more than the copy.
SMALLEST_NBYTES = 64 << 10

# The first byte, and the byte after the last, of the pickle and of each of its arrays.
Parts = list[tuple[int, int]]


class SharedObject:
    """`thing` in anonymous memory, of which `load_shared(fd, parts)` makes a copy in another process.

    It may use functions and classes of the program's main script. The constructor raises whatever pickling raises.
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
        """Close the descriptor. Copies that were loaded stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def load_shared(fd: int, parts: Parts) -> Any:
    """Return the object. Its large arrays share memory, of which a page is copied when it is written to."""
    view = memoryview(mmap.mmap(fd, parts[-1][1], access=mmap.ACCESS_COPY))
    data, *buffers = (view[first:last] for first, last in parts)
    return pickle.loads(data, buffers=buffers)  # noqa: S301 - bytes that the parent process has made
