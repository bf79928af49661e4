"""Signatures: a few numbers for each record, by which it is recognised although its bytes differ a little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .libraries import library_of
from .structure import fields_of, leaves_in, record_count

CELLS = 7
PARTS = 64
# Lengths of an axis that may be the colours of an image.
CHANNELS = (1, 3, 4)


def signatures_of(batch: Any) -> NDArray[np.float32]:
    """Return a signature of the features of each record: float32 of shape `(records, n)`.

    The features are the array with the most elements. An image is an array of real numbers and three axes, one of which
    has the length 1, 3 or 4; that is taken for the channels. Its signature is the means of 7 x 7 cells and the standard
    deviation of each channel, so that `(3, height, width)` and `(height, width, 3)` compare. That of anything else is
    the means of 64 parts of equal length, in the order of the elements, and the standard deviation of all. Numbers that
    are not finite count as 0. If there are no arrays, n is 0.
    """
    fields = [each for each in (_arrays_by_record(field) for field in fields_of(batch)) if each]
    if not fields:
        return np.zeros((record_count(batch), 0), np.float32)
    features = max(fields, key=lambda field: sum(array.size for array in field))
    return join_signatures([_signature_of(array)[np.newaxis] for array in features])


def join_signatures(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the signatures of several batches as one array; shorter ones are filled up with zeros."""
    width = max((part.shape[1] for part in parts), default=0)
    return np.concatenate(
        [np.zeros((0, width), np.float32), *(np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts)]
    )


def labels_of(batch: Any) -> np.ndarray | None:
    """Return the integers of the only field that has a single one for each record, int64 of shape `(records,)`.

    Numbers from 2**63 wrap around. Return None if there is no such field, or several.
    """
    found = []
    for field in fields_of(batch):
        library = library_of(field)
        rows = [leaves_in(item) for item in field] if library is None else [[row] for row in library.to_host(field)]
        single = [[number for leaf in row if (number := _single_integer(leaf)) is not None] for row in rows]
        if single and all(len(each) == 1 for each in single):
            found.append(np.array([number % 2**64 for (number,) in single], np.uint64).view(np.int64))
    return found[0] if len(found) == 1 else None


def _single_integer(leaf: Any) -> int | None:
    """Return the number in `leaf` if that is a single integer, whatever holds it."""
    library = library_of(leaf)
    array = np.asarray(leaf) if library is None else library.to_host(leaf)
    return int(array.item()) if array.size == 1 and array.dtype.kind in "iu" else None


def _arrays_by_record(field: Sequence[Any]) -> list[np.ndarray]:
    """Return the largest array of each record in a field; nothing if some record has no numbers in it."""
    library = library_of(field)
    if library is not None:
        return [*library.numbers_in(field)]
    found = []
    for item in field:
        leaves = [leaf for leaf in leaves_in(item) if not isinstance(leaf, (str, bytes))]
        libraries = [library_of(leaf) for leaf in leaves]
        arrays = [
            np.asarray(leaf) if each is None else each.numbers_in(leaf)
            for leaf, each in zip(leaves, libraries, strict=True)
        ]
        numeric = [array for array in arrays if array.dtype.kind not in "OSUV"]
        if not numeric:
            return []
        found.append(max(numeric, key=lambda array: array.size))
    return found


def _signature_of(array: np.ndarray) -> NDArray[np.float32]:
    is_image = array.ndim == 3 and not np.iscomplexobj(array)
    channels = [axis for axis in (0, 2, 1) if is_image and array.shape[axis] in CHANNELS]
    if np.iscomplexobj(array):
        array = np.stack([array.real, array.imag], axis=-1)
    values = np.nan_to_num(np.asarray(array).astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    if values.size == 0:
        return np.zeros(0, np.float32)
    if channels:
        image = np.moveaxis(values, channels[0], 0)
        rows, columns = _cell_weights(image.shape[1], CELLS), _cell_weights(image.shape[2], CELLS)
        cells = (rows @ image @ columns.T).reshape(len(image), -1)
        deviations = image.std((1, 2), dtype=np.float64)
        return np.asarray(np.concatenate([cells, deviations[:, np.newaxis]], axis=1).reshape(-1), np.float32)
    flat = values.reshape(-1)
    starts, stops = _cell_bounds(len(flat), PARTS)
    sums = np.concatenate([[0.0], np.cumsum(flat, dtype=np.float64)])
    means = (sums[stops] - sums[starts]) / (stops - starts)
    return np.asarray(np.append(means, flat.std(dtype=np.float64)), np.float32)


def _cell_weights(length: int, cells: int) -> NDArray[np.float32]:
    """Return the weights with which elements of an axis count for the mean of each cell: float32, (cells, length)."""
    starts, stops = _cell_bounds(length, cells)
    place = np.arange(length)
    inside = (place >= starts[:, np.newaxis]) & (place < stops[:, np.newaxis])
    weights: NDArray[np.float32] = (inside / (stops - starts)[:, np.newaxis]).astype(np.float32)
    return weights


def _cell_bounds(length: int, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where each cell begins and ends; cells of a short axis overlap, so that none is empty."""
    edges = np.arange(cells + 1) * length
    return edges[:-1] // cells, -(-edges[1:] // cells)
