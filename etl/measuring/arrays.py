"""Reads, digests and copies of the arrays of a batch, whatever its structure and the library of its arrays."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from .libraries import library_of
from .structure import fields_of, leaves_in, record_count
from .values import JsonValues

PAGE_NBYTES = 4096

# The dtype and the shape of one array of a record. An axis whose length differs among records is -1.
ArraySpec = tuple[str, tuple[int, ...]]


def touch(batch: Any) -> int:
    """Wait until all arrays of `batch` are there, and read one byte of every page of those in the CPU's memory.

    Nothing is copied. Arrays that can only be converted by a copy are not read: see `access_of`. Return the sum of the
    bytes, so that the reads cannot be optimised away.
    """
    total = 0
    for leaf in leaves_in(batch):
        library = library_of(leaf)
        array = None if library is None else library.view(leaf)
        if array is not None and array.size:
            memory = memory_of(array)
            total += int(np.add.reduce(memory[..., ::PAGE_NBYTES], axis=None, dtype=np.int64))
            # An array that begins inside a page may reach into one page more than its length implies.
            last = memory[..., -1]
            total += int(last if memory.ndim == 1 else last.sum(dtype=np.int64))
    return total


def page_count(batch: Any) -> int:
    """Return the number of pages that `touch` reads, if every array begins at the start of a page."""
    pages = 0
    for array in views_in(batch):
        if array.size:
            *runs, nbytes = memory_of(array).shape
            pages += int(np.prod(runs, dtype=np.int64)) * -(-nbytes // PAGE_NBYTES)
    return pages


@dataclass(frozen=True)
class Access(JsonValues):
    """Bytes of a batch, by what `touch` does with them.

    Attributes
    ----------
    read : int
        In the CPU's memory: every page is read.
    on_device : mapping of text to int
        On a device, by its name: waited for, not read.
    unread : mapping of text to int
        Handed over as they are, by the name of their type, because only a copy would show what they contain.
    """

    read: int = 0
    on_device: dict[str, int] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.read + sum(self.on_device.values()) + sum(self.unread.values())


def access_of(batch: Any) -> Access:
    """Return how many bytes of `batch` are read by `touch`, waited for on a device, or neither."""
    read = 0
    on_device: dict[str, int] = {}
    unread: dict[str, int] = {}
    for leaf in leaves_in(batch):
        library = library_of(leaf)
        if library is None:
            continue
        array, device = library.view(leaf), library.device_of(leaf)
        nbytes = library.to_host(leaf).nbytes if array is None else array.nbytes
        if array is not None:
            read += nbytes
        elif device is not None:
            on_device[device] = on_device.get(device, 0) + nbytes
        else:
            unread[type(leaf).__name__] = unread.get(type(leaf).__name__, 0) + nbytes
    return Access(read, on_device, unread)


def memory_of(array: np.ndarray) -> np.ndarray:
    """Return the memory that the elements of `array` are in, without a copy: uint8 of shape `(..., nbytes)`.

    Elements are in ascending order of addresses. The last axis is a run of bytes: gaps in it are shorter than a page,
    so each of its pages holds an element, and there is a run for every longer gap. An array without gaps is one run,
    whatever the order of its axes.
    """
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)
    # From the lowest address, with the longest strides first.
    if any(stride < 0 for stride in array.strides):
        array = array[tuple(slice(None, None, -1 if stride < 0 else None) for stride in array.strides)]
    strides = array.strides
    ascending = array.transpose(sorted(range(array.ndim), key=strides.__getitem__, reverse=True))
    if ascending.flags.c_contiguous:
        return ascending.reshape(-1).view(np.uint8)
    # An axis of stride 0 repeats the same memory.
    runs = [each for each in zip(ascending.shape, ascending.strides, strict=True) if each[1]]
    nbytes = array.itemsize
    while runs and runs[-1][1] - nbytes < PAGE_NBYTES:
        length, stride = runs.pop()
        nbytes += (length - 1) * stride
    lowest = ascending[(slice(1),) * array.ndim].reshape(1).view(np.uint8)
    lengths, steps = zip(*runs, (nbytes, 1), strict=True)
    return np.lib.stride_tricks.as_strided(lowest, lengths, steps, writeable=False)


def views_in(batch: Any) -> list[np.ndarray]:
    """Return the arrays of `batch` in the CPU's memory, as numpy arrays that share it."""
    found = ((library_of(leaf), leaf) for leaf in leaves_in(batch))
    views = (library.view(leaf) for library, leaf in found if library is not None)
    return [view for view in views if view is not None]


def copy_of(batch: Any) -> Any:
    """Return the same structure with arrays in memory of their own, so that it outlives the loader's buffers."""
    leaves = leaves_in(batch)
    libraries = [library_of(leaf) for leaf in leaves]
    # What `deepcopy` finds in its memo it does not copy itself: it rebuilds containers of every type around it.
    copies = {id(leaf): each.copy(leaf) for leaf, each in zip(leaves, libraries, strict=True) if each is not None}
    return copy.deepcopy(batch, copies)


def layout_of(batch: Any) -> list[ArraySpec]:
    """Return the dtype and the shape of the arrays of a record: without the first axis, if that counts records.

    A number counts as an array of shape (). Axes whose length differs among the records are -1.
    """
    layouts: list[ArraySpec] = []
    for each in fields_of(batch):
        library = library_of(each)
        if library is not None:
            layouts.append((library.dtype_of(each), library.shape_of(each)[1:]))
        else:
            by_record = [_layout_of_leaves(leaves_in(item)) for item in each]
            merged = by_record[0]
            for other in by_record[1:]:
                merged = merge_layouts(merged, other)
            layouts += merged
    return layouts


def merge_layouts(layouts: Sequence[ArraySpec], others: Sequence[ArraySpec]) -> list[ArraySpec]:
    """Return the layouts that two batches have in common, with -1 for axes in which they differ.

    If they differ in more than that, return those that either of them has.
    """
    if [(dtype, len(shape)) for dtype, shape in layouts] != [(dtype, len(shape)) for dtype, shape in others]:
        return list(dict.fromkeys([*layouts, *others]))
    return [
        (dtype, tuple(a if a == b else -1 for a, b in zip(shape, other, strict=True)))
        for (dtype, shape), (_, other) in zip(layouts, others, strict=True)
    ]


def _layout_of_leaves(leaves: Sequence[Any]) -> list[ArraySpec]:
    layouts = []
    for leaf in leaves:
        library = library_of(leaf)
        if library is not None:
            layouts.append((library.dtype_of(leaf), library.shape_of(leaf)))
        elif not isinstance(leaf, (str, bytes, os.PathLike)):
            layouts.append((str(np.asarray(leaf).dtype), ()))
    return layouts


def digest_of(batch: Any) -> str:
    """Return a 128-bit digest of the shapes, dtypes and bytes of `batch`, as hexadecimal digits."""
    digest = BatchDigest()
    digest.update(batch)
    return digest.hexdigest()


def record_digests(batch: Any) -> list[str]:
    """Return a 64-bit digest of the shapes, dtypes and bytes of each record of `batch`, as hexadecimal digits.

    Equal records have equal digests, whatever their position, the size of the batch, its structure and its libraries.
    """
    digests = [xxhash.xxh3_64() for _ in range(record_count(batch))]
    for each in fields_of(batch):
        library = library_of(each)
        if library is None:
            for digest, item in zip(digests, each, strict=True):
                for leaf in leaves_in(item):
                    _add_leaf(digest, leaf)
            continue
        array = np.ascontiguousarray(library.to_host(each))
        head = f"{library.dtype_of(each)}{array.shape[1:]}".encode()
        for row, digest in enumerate(digests):
            digest.update(head)
            digest.update(_as_bytes(array[row]).data)
    return [digest.hexdigest() for digest in digests]


class BatchDigest:
    """A digest of the shapes, dtypes and bytes of a sequence of batches, whatever holds the arrays."""

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()

    def update(self, batch: Any) -> None:
        """Add `batch` to the digest."""
        for leaf in leaves_in(batch):
            _add_leaf(self._digest, leaf)

    def hexdigest(self) -> str:
        """Return 32 hexadecimal digits."""
        return self._digest.hexdigest()


def _add_leaf(digest: Any, leaf: Any) -> None:
    library = library_of(leaf)
    if library is not None:
        array = library.to_host(leaf)
        digest.update(f"{library.dtype_of(leaf)}{array.shape}".encode())
        digest.update(_as_bytes(array).data)
    elif isinstance(leaf, (str, bytes, os.PathLike)):
        text = os.fspath(leaf)
        text = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        digest.update(f"{type(leaf).__name__}({len(text)})".encode())
        digest.update(text)
    else:  # a number is an array without axes
        array = np.asarray(leaf)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(repr(leaf).encode() if array.dtype.hasobject else _as_bytes(array).data)


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """Return the bytes of `array` in C order, uint8 of shape `(nbytes,)`; a view if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
