"""Loops over rows of many shards, compiled by numba. Importing this module loads numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from presave.compiled import compile_loop

PAGE_NBYTES = 4096
# Bytes that are stored at once, past the caches.
STREAM_NBYTES = 32
# Results at least this large are stored past the caches: they would not stay there until they are read. A cache line is
# then not read before it is overwritten.
LEAST_STREAMED_NBYTES = 8 << 20
ReadOnly = types.Array(types.int64, 1, "C", readonly=True)


def _memcpy_of_addresses(typing: Any, target: Any, source: Any, nbytes: Any) -> Any:  # noqa: ARG001 - numba's names
    """Generate a call of C's memcpy with addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        pointer = ir.IntType(8).as_pointer()
        destination, origin = (builder.inttoptr(address, pointer) for address in arguments[:2])
        cgutils.raw_memcpy(builder, destination, origin, arguments[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _prefetch_address(typing: Any, address: Any) -> Any:  # noqa: ARG001 - numba's names
    """Generate a prefetch instruction: the CPU starts to load the cache line and the page entry of an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        )
        # For reading (0), into all cache levels (3), as data and not code (1).
        builder.call(prefetch, [builder.inttoptr(arguments[0], pointer), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def store_streaming(builder: Any, value: Any, address: Any) -> None:
    """Generate a store of `STREAM_NBYTES` bytes past the caches to an address that is divisible by them.

    `fence` must follow before another thread may read them.
    """
    pointer = builder.inttoptr(address, value.type.as_pointer())
    store = builder.store(value, pointer, align=STREAM_NBYTES)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))


def _fence(typing: Any) -> Any:  # noqa: ARG001 - numba's name
    """Generate a fence: streaming stores are not ordered with others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def _copy_streaming(typing: Any, target: Any, source: Any) -> Any:  # noqa: ARG001 - numba's names
    """Generate a copy of `STREAM_NBYTES` bytes by `store_streaming`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        pointer = ir.VectorType(ir.IntType(8), STREAM_NBYTES).as_pointer()
        value = builder.load(builder.inttoptr(arguments[1], pointer), align=1)
        store_streaming(builder, value, arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _pointer_to_address(typing: Any, address: Any) -> Any:  # noqa: ARG001 - numba's names
    """Generate the conversion of an address to a pointer to bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.CPointer(types.uint8)(types.int64), generate  # type: ignore[no-untyped-call]


_memcpy: Any = intrinsic(_memcpy_of_addresses)
_prefetch: Any = intrinsic(_prefetch_address)
_stream: Any = intrinsic(_copy_streaming)
fence: Any = intrinsic(_fence)
pointer_to: Any = intrinsic(_pointer_to_address)


def _prefetch_row(address: int, nbytes: int) -> None:
    """Let the CPU look up the pages of a row while it works on the row before: 3% less time (benchmarks/gather.py)."""
    for page in range(address, address + nbytes, PAGE_NBYTES):
        _prefetch(page)


prefetch_row: Any = njit(_prefetch_row)


def _find_rows(
    indices: np.ndarray, first_records: np.ndarray, addresses: np.ndarray, nbytes: int, rows: np.ndarray, slot: int
) -> int:
    """Write the addresses of rows, until one is in a shard whose address is not known yet.

    Parameters
    ----------
    indices : int64 array of shape (records,)
        Records to find. The caller has checked that they exist.
    first_records : int64 array of shape (shards + 1,)
        Index of each shard's first record.
    addresses : int64 array of shape (shards,)
        Address of each shard's first row, or 0 if it is not known.
    nbytes : int
        Bytes of a row.
    rows : int64 array of shape (records,)
        Gets the addresses.
    slot : int
        Position in `indices` to begin at.

    Returns
    -------
    int
        Position of the first record that was not found; the number of records if all were.
    """
    shard = 0
    while slot < indices.size:
        index = indices[slot]
        if not first_records[shard] <= index < first_records[shard + 1]:
            shard = np.searchsorted(first_records, index, "right") - 1
        if addresses[shard] == 0:
            break
        rows[slot] = addresses[shard] + (index - first_records[shard]) * nbytes
        slot += 1
    return slot


def _copy_rows(rows: np.ndarray, nbytes: int, out: np.ndarray) -> None:
    """Copy rows of `nbytes` bytes at the addresses `rows` into `out`, a uint8 array of shape (records * nbytes,)."""
    target = out.ctypes.data
    streams = out.size >= LEAST_STREAMED_NBYTES and nbytes > PAGE_NBYTES
    for slot in range(rows.size):
        if slot + 1 < rows.size:
            prefetch_row(rows[slot + 1], nbytes)
        row, left, place = rows[slot], nbytes, target + slot * nbytes
        if streams:
            head = -place % STREAM_NBYTES
            _memcpy(place, row, head)
            blocks = (nbytes - head) // STREAM_NBYTES * STREAM_NBYTES
            for at in range(head, head + blocks, STREAM_NBYTES):
                _stream(place + at, row + at)
            row, place, left = row + head + blocks, place + head + blocks, nbytes - head - blocks
        _memcpy(place, row, left)
    if streams:
        fence()


Numbers = types.Array(types.int64, 1, "C")
find_rows = compile_loop(_find_rows, types.int64(ReadOnly, ReadOnly, ReadOnly, types.int64, Numbers, types.int64))
copy_rows = compile_loop(_copy_rows, types.void(ReadOnly, types.int64, types.Array(types.uint8, 1, "C")))
