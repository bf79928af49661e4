"""Rows copied out of many shards by a loop that numba compiles. Imported when it is first used: it loads numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from presave.compiled import compile_loop

ReadOnly = types.Array(types.int64, 1, "C", readonly=True)


def _memcpy_of_addresses(typing: Any, target: Any, source: Any, nbytes: Any) -> Any:  # noqa: ARG001 - numba's names
    """C's memcpy, of addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        pointer = ir.IntType(8).as_pointer()
        to, of = (builder.inttoptr(address, pointer) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, of, arguments[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


_memcpy: Any = intrinsic(_memcpy_of_addresses)


def _copy_rows(
    numbers: np.ndarray, first_records: np.ndarray, addresses: np.ndarray, nbytes: int, out: np.ndarray, slot: int
) -> int:
    """Copy the rows of `numbers[slot:]`, of `nbytes` each, into the bytes of `out`; the first that it did not copy.

    Shard k begins with record `first_records[k]`, at `addresses[k]`; it stops where that is 0. All records are there:
    the caller has checked them.
    """
    target, shard = out.ctypes.data, 0
    while slot < numbers.size:
        number = numbers[slot]
        if not first_records[shard] <= number < first_records[shard + 1]:
            shard = np.searchsorted(first_records, number, "right") - 1
        if addresses[shard] == 0:
            break
        _memcpy(target + slot * nbytes, addresses[shard] + (number - first_records[shard]) * nbytes, nbytes)
        slot += 1
    return slot


copy_rows = compile_loop(
    _copy_rows,
    types.int64(ReadOnly, ReadOnly, ReadOnly, types.int64, types.Array(types.uint8, 1, "C"), types.int64),
)
