"""Whether a loader does the work that the others do: every photograph once, shuffled, and with the same pixels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from benchmarks.measuring.turns import DifferentWork
from benchmarks.peers.imagenet import SIZE
from benchmarks.peers.loader import PRESAVED, RAW

CELLS = 7
# In units of the normalised pixels. Over 2,048 photographs, resizers with and without antialiasing, by area, and other
# decoders differ from Pillow by at most 0.04; a channel normalised with another's statistics is off by 0.08 to 0.4.
TOLERANCE = {RAW: 0.08, PRESAVED: 0.001}


def describe(images: np.ndarray) -> np.ndarray:
    """Means of 7 x 7 cells and the standard deviation, a channel each: float32 of shape `(batch, 3, 50)`.

    `images` are floats of shape `(batch, 3, 224, 224)`.
    """
    cells = images.reshape(len(images), 3, CELLS, SIZE // CELLS, CELLS, SIZE // CELLS)
    means = cells.mean((3, 5), dtype=np.float64).reshape(len(images), 3, CELLS * CELLS)
    deviations = images.std((2, 3), dtype=np.float64)[..., np.newaxis]
    described: np.ndarray = np.concatenate([means, deviations], axis=2).astype(np.float32)
    return described


def check_epochs(
    epochs: Iterable[Iterable[tuple[Any, Any]]],
    expected: np.ndarray,
    batch_size: int,
    tolerance: float,
    channels_last: bool = False,
) -> None:
    """Raise `DifferentWork` unless each epoch brings every photograph once, in an order of its own, as `expected`.

    `expected` is what `describe` says of all photographs, in the order of their numbers.
    """
    orders: list[list[int]] = []
    for epoch in epochs:
        orders.append([])
        for images, numbers in epoch:
            check_batch(images, batch_size, channels_last)
            found = [int(number) for number in numbers]
            if len(found) != len(images):
                raise DifferentWork(f"{len(found)} numbers came with {len(images)} images")
            orders[-1] += found
            _check_pixels(np.asarray(images), found, expected, tolerance)
        _check_complete(orders[-1], len(expected))
        if orders[-1] == sorted(orders[-1]):
            raise DifferentWork("the photographs came in their own order, not shuffled")
    if any(order == orders[0] for order in orders[1:]):
        raise DifferentWork("two epochs came in the same order")


def check_batch(images: Any, batch_size: int, channels_last: bool) -> None:
    """Raise `DifferentWork` unless `images` are a batch in the memory of the CPU as the task asks for."""
    array = np.asarray(images)
    if array.dtype != np.float32 or array.ndim != 4 or array.shape[1:] != (3, SIZE, SIZE):
        raise DifferentWork(f"a batch is {array.dtype} {array.shape}, not float32 (batch, 3, {SIZE}, {SIZE})")
    if len(array) > batch_size:
        raise DifferentWork(f"a batch has {len(array)} images, not {batch_size}")
    if not (array.transpose(0, 2, 3, 1) if channels_last else array).flags.c_contiguous:
        raise DifferentWork(f"a batch is not contiguous{' with channels last' if channels_last else ''}")


def _check_pixels(images: np.ndarray, numbers: list[int], expected: np.ndarray, tolerance: float) -> None:
    for number, description in zip(numbers, describe(images), strict=True):
        if not 0 <= number < len(expected):
            raise DifferentWork(f"photograph {number} came, but they are numbered from 0 to {len(expected) - 1}")
        wanted = expected[number]
        off = np.abs(description - wanted) > tolerance
        if off.any():
            channel, place = (int(index) for index in np.argwhere(off)[0])
            what = "standard deviation" if place == CELLS * CELLS else f"mean of cell {divmod(place, CELLS)}"
            raise DifferentWork(
                f"photograph {number}, channel {channel}: the {what} is {description[channel, place]:.3f}, "
                f"not {wanted[channel, place]:.3f}"
            )


def _check_complete(order: list[int], count: int) -> None:
    times = np.bincount(order, minlength=count)
    if missing := int((times == 0).sum()):
        raise DifferentWork(f"{missing} of {count} photographs did not come, the first of them {times.argmin()}")
    if (times > 1).any():
        raise DifferentWork(f"photograph {times.argmax()} came {times.max()} times in one epoch")
