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


def _pointer_to_address(typing: Any, address: Any) -> Any:  # noqa: ARG001 - numba's names
    """Generate the conversion of an address to a pointer to bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.CPointer(types.uint8)(types.int64), generate


_memcpy: Any = intrinsic(_memcpy_of_addresses)
_prefetch: Any = intrinsic(_prefetch_address)
pointer_to: Any = intrinsic(_pointer_to_address)


@njit
def prefetch_row(address: int, nbytes: int) -> None:
    """Let the CPU look up the pages of a row while it works on the row before: 3% less time (benchmarks/gather.py)."""
    for page in range(address, address + nbytes, PAGE_NBYTES):
        _prefetch(page)


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
    for slot in range(rows.size):
        if slot + 1 < rows.size:
            prefetch_row(rows[slot + 1], nbytes)
        _memcpy(target + slot * nbytes, rows[slot], nbytes)


Numbers = types.Array(types.int64, 1, "C")
find_rows = compile_loop(_find_rows, types.int64(ReadOnly, ReadOnly, ReadOnly, types.int64, Numbers, types.int64))
copy_rows = compile_loop(_copy_rows, types.void(ReadOnly, types.int64, types.Array(types.uint8, 1, "C")))
