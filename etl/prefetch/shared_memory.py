"""Anonymous memory that worker processes share: for batches, and for the loader that each gets a copy of."""

from __future__ import annotations

import mmap
import os
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from presave import interrupts
from presave.carrying import dumps

PAGE_NBYTES = mmap.ALLOCATIONGRANULARITY
MIN_CHUNK_NBYTES = 1 << 20
# Alignment and minimum size of the arrays that a `SharedObject` maps. Mapping smaller ones costs more than copying them
# in the pickle.
ALIGNMENT_NBYTES = 64
MIN_SHARED_NBYTES = 64 << 10

# The first byte, and the byte after the last, of a pickle and of each array that belongs to it.
Parts = list[tuple[int, int]]


class Place(NamedTuple):
    """The place of an array in a `SharedMemory`, for another process.

    It is the offset and size of the array's chunk, and the array's start in it, in bytes; and the array's shape and
    dtype.
    """

    chunk: int
    chunk_nbytes: int
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype


class SharedMemory:
    """An anonymous file in memory (`memfd_create`), which processes that have its descriptor map.

    It needs no room in `/dev/shm`, and is freed with the last process that has it, however that process ends. It grows
    in chunks that double its size, because Python keeps a descriptor open for each mapping. A chunk takes no memory
    before it is written to.
    """

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name)
        self._nbytes = 0
        self._chunks: list[_Chunk] = []
        self._free: dict[int, deque[tuple[_Chunk, int]]] = {}
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Return zeroed uint8 memory of shape `(nbytes,)`; the system gets it back when nothing refers to it."""
        whole = max(1, -(-nbytes // PAGE_NBYTES)) * PAGE_NBYTES
        with self._lock:
            chunk, start = self._find(whole)
        return np.asarray(_Block(self._free, chunk, start, whole))[:nbytes]

    def place(self, array: np.ndarray) -> Place:
        """Return the place of `array`, which must be contiguous.

        Raises `ValueError` if it is not in memory from `allocate`.
        """
        address = array.__array_interface__["data"][0]
        for chunk in self._chunks:
            start = address - chunk.address
            if 0 <= start < chunk.nbytes or not array.nbytes:
                return Place(chunk.offset, chunk.nbytes, start if array.nbytes else 0, array.shape, array.dtype)
        raise ValueError("the array is not in this shared memory")

    def close(self) -> None:
        """Close the descriptor. Nothing can be allocated afterwards; arrays that exist stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _find(self, nbytes: int) -> tuple[_Chunk, int]:
        free = self._free.setdefault(nbytes, deque())
        try:
            return free.pop()
        except IndexError:
            pass
        if not self._chunks or self._chunks[-1].used + nbytes > self._chunks[-1].nbytes:
            size = max(nbytes, self._nbytes, MIN_CHUNK_NBYTES)
            os.ftruncate(self.fd, self._nbytes + size)
            self._chunks.append(_Chunk(self.fd, self._nbytes, size))
            self._nbytes += size
        chunk = self._chunks[-1]
        start, chunk.used = chunk.used, chunk.used + nbytes
        return chunk, start


class SharedView:
    """A `SharedMemory` as another process sees it, through a descriptor of its own."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._chunks: dict[int, mmap.mmap] = {}

    def array(self, place: Place) -> np.ndarray:
        """Return the array at `place`."""
        if place.chunk not in self._chunks:
            self._chunks[place.chunk] = mmap.mmap(self._fd, place.chunk_nbytes, offset=place.chunk)
        return np.ndarray(place.shape, place.dtype, self._chunks[place.chunk], place.start)


class _Chunk:
    """A part of the file, mapped; blocks are cut off its unused end."""

    def __init__(self, fd: int, offset: int, nbytes: int) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.mapping = mmap.mmap(fd, nbytes, offset=offset)
        self.array = np.frombuffer(self.mapping, np.uint8)
        self.address = self.array.__array_interface__["data"][0]
        self.used = 0


class _Block:
    """The base object of an array in a chunk. numpy drops it with the last view, which frees the memory."""

    def __init__(self, free: dict[int, deque[tuple[_Chunk, int]]], chunk: _Chunk, start: int, nbytes: int) -> None:
        self.__array_interface__ = chunk.array[start : start + nbytes].__array_interface__
        # No lock: the garbage collector may call it anywhere.
        give_back = partial(
            _free_block,
            os.getpid,
            os.getpid(),
            partial(chunk.mapping.madvise, mmap.MADV_REMOVE, start, nbytes),
            partial(free[nbytes].extend, iter([(chunk, start)])),
        )
        self._end = weakref.ref(self, interrupts.finalizer(give_back))


def _free_block(
    getpid: Callable[[], int], owner: int, remove: Callable[[], object], keep: Callable[[], object]
) -> None:
    """Return memory to the system and keep its place, except in a fork, whose parent still uses it.

    It uses no globals of the module, which may be gone when the interpreter ends. After an interrupt it is called
    again: the place is in an iterator, which has it once.
    """
    if getpid() == owner:
        remove()
        keep()


class SharedObject:
    """`thing` in anonymous memory, of which `load_shared(fd, parts)` makes a copy in another process.

    It may use functions and classes of the program's main script. The constructor raises whatever pickling raises.
    """

    def __init__(self, thing: Any) -> None:
        buffers: list[memoryview] = []

        def keep_in_pickle(buffer: pickle.PickleBuffer) -> bool:
            view = buffer.raw()
            if view.nbytes < MIN_SHARED_NBYTES:
                return True
            buffers.append(view)
            return False

        data: Any = dumps(thing, protocol=5, buffer_callback=keep_in_pickle)
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
    return pickle.loads(data, buffers=buffers)  # noqa: S301 - the very bytes that the parent process has made
