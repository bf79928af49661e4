"""Gather, cast and normalise in one pass, for photographs that were presaved after "resize"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import presave
from etl.kernels import CHANNELS, find_normalise_addresses, find_normalise_rows
from etl.stages import Normalise


def can_gather_normalised(store: presave.Store, normalise: Normalise) -> bool:
    """Return whether `store` has features that `gather_normalised` takes: uint8 of shape `(height, width, 3)`."""
    field = store.fields.get("features")
    if field is None or field.is_ragged or field.numpy_dtype != np.uint8:
        return False
    return len(field.sizes) == 3 and field.sizes[-1] == CHANNELS == len(normalise.mean)


def gather_normalised(
    store: presave.Store,
    indices: Sequence[int] | NDArray[np.integer] | range,
    normalise: Normalise,
    out: np.ndarray | None = None,
    *,
    kernel: str = "auto",
) -> np.ndarray:
    """Gather the features of records, channels first and normalised.

    The result is bit for bit that of the stages `ChannelsFirst` and `Normalise`. Each pixel is read once, from the
    mapped file, and written once.

    Parameters
    ----------
    store : presave.Store
        A store whose features are uint8 of shape `(height, width, 3)`.
    indices : sequence of int
        The records, in any order. A record may come more than once.
    normalise : Normalise
        The stage, with a mean for each channel.
    out : float32 array of shape (len(indices), 3, height, width), optional
        Contiguous memory to write into.
    kernel : {"auto", "numba", "numpy"}
        "numba" is a compiled loop that releases the GIL; "numpy" gives the same bits without numba. "auto" begins to
        load numba in the background, and uses numpy until numba is loaded, or if it is not installed.

    Returns
    -------
    float32 array of shape (len(indices), 3, height, width)

    Raises
    ------
    ValueError
        If the store has other features, `out` does not fit, or the kernel is unknown.
    ImportError
        If `kernel` is "numba" and numba is not installed.
    IndexError, StoreError
        As for `Store.gather`.
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
    normalise_addresses = None if kernel == "numpy" else find_normalise_addresses()
    found = None if normalise_addresses is None else store.row_addresses("features", indices)
    if normalise_addresses is not None and found is not None:
        addresses, owner = found
        normalise_addresses(addresses, out, offset, scale)
        del owner  # until here, it keeps the images in memory
        return out
    for images, rows, slots in store.rows_by_shard("features", indices):
        normalise_rows(images, rows, False, out, slots, offset, scale)
    return out
