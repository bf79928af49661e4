"""Gather, cast and normalise in one pass: what is left to do for photographs that were presaved after "resize"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import presave
from etl.kernels import CHANNELS, find_normalise_rows
from etl.stages import Normalise


def can_gather_normalised(store: presave.Store, normalise: Normalise) -> bool:
    """Whether `store` holds what `gather_normalised` takes: features of uint8 and shape `(height, width, 3)`."""
    field = store.fields.get("features")
    if field is None or field.is_ragged or field.numpy_dtype != np.uint8:
        return False
    return len(field.sizes) == 3 and field.sizes[-1] == CHANNELS == len(normalise.mean)


def gather_normalised(
    store: presave.Store,
    indices: Sequence[int] | np.ndarray | range,
    normalise: Normalise,
    out: np.ndarray | None = None,
    *,
    kernel: str = "auto",
) -> np.ndarray:
    """The features of records `indices`, channels first and normalised: float32 of shape
    `(len(indices), 3, height, width)`, the bits that `ChannelsFirst` and `Normalise` give.

    Pixels are read once, from the mapped file, and written once, into `out` where that is given. `kernel` "numba"
    is a compiled loop without the interpreter's lock, "numpy" the same in numpy; "auto" takes the former where it is
    installed, once it is loaded. Raises `ValueError` for a store of other features, an `out` that does not fit or an
    unknown kernel, `ImportError` for "numba" where that is missing, and as `Store.gather` does.
    """
    if not can_gather_normalised(store, normalise):
        raise ValueError(
            f"{store.path} and Normalise of {len(normalise.mean)} channels: the store needs features of uint8 and "
            f"shape (height, width, {CHANNELS}), and a mean for each channel; use a PresavedIterator"
        )
    height, width = store.fields["features"].sizes[:2]
    shape = (len(indices), CHANNELS, height, width)
    if out is None:
        out = np.empty(shape, np.float32)
    elif out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(
            f"out is {out.dtype} of shape {out.shape}; it must be writable, contiguous float32 of shape {shape}"
        )
    normalise_rows = find_normalise_rows(kernel)
    offset, scale = normalise.offset.reshape(-1), normalise.scale.reshape(-1)
    for images, rows, slots in store.rows_by_shard("features", indices):
        normalise_rows(images, rows, out, slots, offset, scale)
    return out
