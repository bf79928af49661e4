"""Normalising rows of pixels in a loop that numba compiles. Imported on first use, since this loads numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from presave.compiled import compile_loop
from presave.mapped_rows_numba import (
    LEAST_STREAMED_NBYTES,
    STREAM_NBYTES,
    fence,
    pointer_to,
    prefetch_row,
    store_streaming,
)

# Of a pixel, and pixels that are stored at once, past the caches.
CHANNELS, LANES = 3, STREAM_NBYTES // 4


def _pixels(lanes: int) -> Any:
    """Return a function that normalises `lanes` pixels at the address `source` to `target`, and to the planes after."""
    values, floats = ir.VectorType(ir.IntType(8), 3 * lanes), ir.VectorType(ir.FloatType(), lanes)
    numbers = ir.VectorType(ir.IntType(32), lanes)

    def normalise(typing: Any, source: Any, target: Any, plane: Any, offset: Any, scale: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - numba's
            def repeated(triple: Any, channel: int) -> Any:
                first = builder.insert_element(none, builder.extract_value(triple, channel), ir.IntType(32)(0))
                return builder.shuffle_vector(first, none, numbers(None))

            none = ir.Constant(floats, ir.Undefined)
            source, target, plane, offset, scale = arguments
            pixels = builder.load(builder.inttoptr(source, values.as_pointer()), align=1)
            for channel in range(CHANNELS):
                places = numbers([3 * lane + channel for lane in range(lanes)])
                value = builder.uitofp(builder.shuffle_vector(pixels, values(ir.Undefined), places), floats)
                value = builder.fmul(builder.fsub(value, repeated(offset, channel)), repeated(scale, channel))
                if lanes == LANES:
                    store_streaming(builder, value, target)
                else:
                    builder.store(value, builder.inttoptr(target, floats.as_pointer()), align=4)
                target = builder.add(target, plane)
            return context.get_dummy_value()

        triple = types.UniTuple(types.float32, CHANNELS)  # type: ignore[no-untyped-call]
        return types.void(*[types.int64] * 3, triple, triple), generate

    return intrinsic(normalise)


_normalise_pixel, _normalise_pixels = _pixels(1), _pixels(LANES)


@njit
def _normalise(
    pixels: np.ndarray, flip: bool, height: int, width: int, out: np.ndarray, offset: np.ndarray, scale: np.ndarray
) -> None:
    # Bound by writing `out`, in three streams that vectorise: benchmarks/gather.py compares it with `fill`. One channel
    # after another took three times as long. Every operation is float32, as in numpy, so the bits are the same.
    offset0, offset1, offset2 = offset[0], offset[1], offset[2]
    scale0, scale1, scale2 = scale[0], scale[1], scale[2]
    # A flip goes through one line at a time, backwards; otherwise the image is one line.
    lines, length = (height, width) if flip else (1, height * width)
    image, normalised = pixels.reshape(lines, 3 * length), out.reshape(3, lines, length)
    for line in range(lines):
        values = image[line]
        plane0, plane1, plane2 = normalised[0, line], normalised[1, line], normalised[2, line]
        if flip:
            # Unsigned: a signed index may be negative, which numba tests for each pixel, and nothing vectorises.
            last = np.uint64(length - 1)
            for pixel in range(length):
                first, target = np.uint64(3) * np.uint64(pixel), last - np.uint64(pixel)
                plane0[target] = (np.float32(values[first]) - offset0) * scale0
                plane1[target] = (np.float32(values[first + np.uint64(1)]) - offset1) * scale1
                plane2[target] = (np.float32(values[first + np.uint64(2)]) - offset2) * scale2
        else:
            for pixel in range(length):
                plane0[pixel] = (np.float32(values[3 * pixel]) - offset0) * scale0
                plane1[pixel] = (np.float32(values[3 * pixel + 1]) - offset1) * scale1
                plane2[pixel] = (np.float32(values[3 * pixel + 2]) - offset2) * scale2


def _normalise_rows(
    images: np.ndarray,
    rows: np.ndarray,
    flip: bool,
    out: np.ndarray,
    slots: np.ndarray,
    offset: np.ndarray,
    scale: np.ndarray,
) -> None:
    height, width = images.shape[1:3]
    for k in range(rows.size):
        _normalise(images[rows[k]].reshape(-1), flip, height, width, out[slots[k]], offset, scale)


@njit
def _normalise_streaming(
    source: int, target: int, length: int, head: int, offset: np.ndarray, scale: np.ndarray
) -> None:
    plane, blocks = 4 * length, (length - head) // LANES * LANES
    offsets, scales = (offset[0], offset[1], offset[2]), (scale[0], scale[1], scale[2])
    for pixel in range(head, head + blocks, LANES):
        _normalise_pixels(source + 3 * pixel, target + 4 * pixel, plane, offsets, scales)
    for first, last in ((0, head), (head + blocks, length)):
        for pixel in range(first, last):
            _normalise_pixel(source + 3 * pixel, target + 4 * pixel, plane, offsets, scales)


def _normalise_addresses(addresses: np.ndarray, out: np.ndarray, offset: np.ndarray, scale: np.ndarray) -> None:
    height, width = out.shape[2:]
    length = height * width
    nbytes = 3 * length
    # All planes then begin with as many pixels up to an address that can be stored to at once.
    streams = out.nbytes >= LEAST_STREAMED_NBYTES and length % LANES == 0
    head = -out.ctypes.data % STREAM_NBYTES // 4
    for k in range(addresses.size):
        if k + 1 < addresses.size:
            prefetch_row(addresses[k + 1], nbytes)
        if streams:
            _normalise_streaming(addresses[k], out[k].ctypes.data, length, head, offset, scale)
            continue
        _normalise(carray(pointer_to(addresses[k]), (nbytes,)), False, height, width, out[k], offset, scale)
    if streams:
        fence()


def _array(dtype: types.Type, axes: int, readonly: bool = True) -> types.Type:
    return types.Array(dtype, axes, "C", readonly=readonly)


# Images of a store are read-only. An array that is not may be passed, too.
_NUMBERS, _CHANNELS = _array(types.int64, 1), _array(types.float32, 1)
_IMAGES = _array(types.float32, 4, readonly=False)
normalise_rows = compile_loop(
    _normalise_rows,
    types.void(
        _array(types.uint8, 4),
        _NUMBERS,
        types.boolean,
        _IMAGES,
        _NUMBERS,
        _CHANNELS,
        _CHANNELS,
    ),
)
normalise_addresses = compile_loop(_normalise_addresses, types.void(_NUMBERS, _IMAGES, _CHANNELS, _CHANNELS))
