"""Rows of pixels normalised by a loop that numba compiles. Imported when it is first used: it loads numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np


def _normalise_rows(
    images: np.ndarray, rows: np.ndarray, out: np.ndarray, slots: np.ndarray, offset: np.ndarray, scale: np.ndarray
) -> None:
    # Bound by the write of `out`, in three streams that vectorise: benchmarks/gather.py compares it with `fill`. One
    # channel after another took three times as long. Every operation is float32, as numpy's: the bits are the same.
    pixels = images.shape[1] * images.shape[2]
    offset0, offset1, offset2 = offset[0], offset[1], offset[2]
    scale0, scale1, scale2 = scale[0], scale[1], scale[2]
    for k in range(rows.size):
        image = images[rows[k]].reshape(3 * pixels)
        normalised = out[slots[k]].reshape(3 * pixels)
        plane0, plane1, plane2 = normalised[:pixels], normalised[pixels : 2 * pixels], normalised[2 * pixels :]
        for pixel in range(pixels):
            plane0[pixel] = (np.float32(image[3 * pixel]) - offset0) * scale0
            plane1[pixel] = (np.float32(image[3 * pixel + 1]) - offset1) * scale1
            plane2[pixel] = (np.float32(image[3 * pixel + 2]) - offset2) * scale2


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        compiled: Callable[..., Any] = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # nowhere to keep the machine code: neither this folder nor the user's cache is writable
        compiled = numba.njit(nogil=True)(function)
    return compiled


normalise_rows = _compile(_normalise_rows)
