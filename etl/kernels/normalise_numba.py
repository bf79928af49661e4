"""Normalising rows of pixels in a loop that numba compiles. Imported on first use, since this loads numba."""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types

from presave.compiled import compile_loop
from presave.mapped_rows_numba import pointer_to, prefetch_row


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


def _normalise_addresses(addresses: np.ndarray, out: np.ndarray, offset: np.ndarray, scale: np.ndarray) -> None:
    height, width = out.shape[2:]
    nbytes = 3 * height * width
    for k in range(addresses.size):
        if k + 1 < addresses.size:
            prefetch_row(addresses[k + 1], nbytes)
        _normalise(carray(pointer_to(addresses[k]), (nbytes,)), False, height, width, out[k], offset, scale)


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
