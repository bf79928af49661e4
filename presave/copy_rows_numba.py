"""Rows copied out of many shards by a loop that numba compiles. Imported when it is first used: it loads numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from presave.compiled import compile_loop

PAGE_NBYTES = 4096
ReadOnly = types.Array(types.int64, 1, "C", readonly=True)


def _memcpy_of_addresses(typing: Any, target: Any, source: Any, nbytes: Any) -> Any:  # noqa: ARG001 - numba's names
    """C's memcpy, of addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        pointer = ir.IntType(8).as_pointer()
        to, of = (builder.inttoptr(address, pointer) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, of, arguments[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _prefetch_address(typing: Any, address: Any) -> Any:  # noqa: ARG001 - numba's names
    """Have the processor begin to read what is at an address: the cache line, and where its page is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        )
        # To read, to be kept in all caches, of data.
        builder.call(prefetch, [builder.inttoptr(arguments[0], pointer), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


_memcpy: Any = intrinsic(_memcpy_of_addresses)
_prefetch: Any = intrinsic(_prefetch_address)


def _copy_rows(
    numbers: np.ndarray, first_records: np.ndarray, addresses: np.ndarray, nbytes: int, out: np.ndarray, slot: int
) -> int:
    """Copy the rows of `numbers[slot:]`, of `nbytes` each, into the bytes of `out`; the first that it did not copy.

    Shard k begins with record `first_records[k]`, at `addresses[k]`; it stops where that is 0. All records are there:
    the caller has checked them.
    """
    target, shard, source = out.ctypes.data, 0, 0
    while slot < numbers.size:
        number = numbers[slot]
        if not first_records[shard] <= number < first_records[shard + 1]:
            shard = np.searchsorted(first_records, number, "right") - 1
        if addresses[shard] == 0:
            break
        following = addresses[shard] + (number - first_records[shard]) * nbytes
        # The row before is copied only now, so that this one's pages are found meanwhile: 3% (benchmarks/gather.py).
        for page in range(following, following + nbytes, PAGE_NBYTES):
            _prefetch(page)
        if source:
            _memcpy(target + (slot - 1) * nbytes, source, nbytes)
        source = following
        slot += 1
    if source:
        _memcpy(target + (slot - 1) * nbytes, source, nbytes)
    return slot


copy_rows = compile_loop(
    _copy_rows,
    types.int64(ReadOnly, ReadOnly, ReadOnly, types.int64, types.Array(types.uint8, 1, "C"), types.int64),
)
