"""Normalising rows of pixels, with numba once it is loaded, and with numpy until then or if numba is missing."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from presave import mapped_rows
from presave.compiled import Compiled

KERNELS = ("auto", "numba", "numpy")
CHANNELS = 3

# Takes the arguments of `normalise_rows`.
NormaliseRows = Callable[[np.ndarray, np.ndarray, bool, np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]
# Takes addresses, `out`, offset and scale.
NormaliseAddresses = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]


def find_normalise_rows(kernel: str = "auto") -> NormaliseRows:
    """Return the function for `kernel`: "auto", "numba" or "numpy". All give the same bits.

    "auto" never waits. It begins to load numba in a thread, which takes 0.6 s, and returns `normalise_rows` until that
    is done. Raises `ValueError` for an unknown kernel, and `ImportError` for "numba" if numba is not installed or
    cannot be used.
    """
    if kernel not in KERNELS:
        raise ValueError(f"unknown kernel {kernel!r}; known: {', '.join(KERNELS)}")
    if kernel == "numba":
        _COMPILED.wait()
        if _COMPILED.error is not None:
            raise ImportError(f"kernel 'numba' cannot be loaded: {_COMPILED.error}") from _COMPILED.error
        if _COMPILED.module is None:
            raise ImportError("kernel 'numba' needs numba: pip install 'fair-etl[fast]'")
    if kernel == "auto":
        _COMPILED.begin()
    module = None if kernel == "numpy" else _COMPILED.module
    return normalise_rows if module is None else module.normalise_rows


def find_normalise_addresses() -> NormaliseAddresses | None:
    """Return the compiled loop over addresses of images, which are not flipped; None until it is loaded.

    One call for a batch from dozens of shards takes 0.85 of the time of a call for each, after which threads wait for
    the GIL.
    """
    return None if _COMPILED.module is None else _COMPILED.module.normalise_addresses


def load_kernels() -> bool:
    """Wait until the compiled loops are loaded; return False if numba is not installed, or cannot be used.

    Call it before a measurement, or in a server before it forks. Without this call, the loops load in the background
    during the first batches.
    """
    for compiled in (_COMPILED, mapped_rows.COMPILED):
        compiled.wait()
    return _COMPILED.module is not None


def normalise_rows(
    images: np.ndarray,
    rows: np.ndarray,
    flip: bool,
    out: np.ndarray,
    slots: np.ndarray,
    offset: np.ndarray,
    scale: np.ndarray,
) -> None:
    """Write `(images[rows] - offset) * scale` into `out[slots]`, channels first, with numpy.

    Parameters
    ----------
    images : uint8 array of shape (records, height, width, 3)
        Pixels.
    rows : int64 array of shape (count,)
        Indices into `images`.
    flip : bool
        Flip each image left to right.
    out : float32 array of shape (batch, 3, height, width)
        Receives the results.
    slots : int64 array of shape (count,)
        Indices into `out`.
    offset, scale : float32 array of shape (3,)
        Value to subtract from each channel, and factor to multiply the difference by.
    """
    offset, scale = offset[:, None, None], scale[:, None, None]
    for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
        image = out[slot]
        # Converted first: a subtraction of mixed types goes through numpy's buffers, which took 1.3 times as long. The
        # passes after it find the image in the cache (benchmarks/gather.py).
        image[...] = images[row, :, :: -1 if flip else 1].transpose(2, 0, 1)
        np.subtract(image, offset, out=image)
        np.multiply(image, scale, out=image)


def _load() -> ModuleType:
    from etl.kernels import normalise_numba

    return normalise_numba


_COMPILED = Compiled(_load)
