"""The work of every loader: the photographs that it gets, and the check that it delivers them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring.turns import DifferentWork
from benchmarks.peers.loader import PRESAVED, RAW, SIZE

CELLS = 7
# In units of the normalised pixels. Over 2,048 photographs, resizers with and without antialiasing, by area, and other
# decoders differ from Pillow by at most 0.04; a channel normalised with another's statistics is off by 0.08 to 0.4.
TOLERANCE = {RAW: 0.08, PRESAVED: 0.001}


@dataclass(frozen=True)
class Inputs:
    """One set of photographs.

    Attributes
    ----------
    photographs : str
        The folder of photographs. Each has a sub-folder, `000017/photograph.jpg`, so that a loader that derives the
        label from the folder returns the number of the photograph.
    images : str
        A .npy of the resized pixels, uint8 of shape `(records, 224, 224, 3)`.
    expected : str
        A .npy of `describe` of all photographs, normalised.
    records : int
        Photographs.
    """

    photographs: str
    images: str
    expected: str
    records: int


def make_inputs(source: Path, folder: Path) -> Inputs:
    """Make the inputs in `folder` from the image folder `source`, unless they are there."""
    import etl

    files = etl.ImageFolder(source).files
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        for number, file in enumerate(files):
            target = unfinished / "photographs" / f"{number:06d}" / "photograph.jpg"
            target.parent.mkdir(parents=True)
            shutil.copyfile(source / file, target)
        _decode(unfinished)
        os.rename(unfinished, folder)
    return Inputs(
        photographs=str(folder / "photographs"),
        images=str(folder / "images.npy"),
        expected=str(folder / "expected.npy"),
        records=len(files),
    )


def _decode(folder: Path) -> None:
    import etl  # not installed in the environments of other loaders

    source, pipeline = etl.ImageFolder(folder / "photographs"), etl.image_pipeline(size=SIZE)
    records = etl.records(source, pipeline.until("resize"))
    finish = pipeline.after("resize")
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (len(source), SIZE, SIZE, 3))
    expected = []
    for number in range(len(source)):
        record = records[number]
        images[number] = record["features"]
        expected.append(describe(finish(record)["features"][np.newaxis])[0])
    images.flush()
    np.save(folder / "expected.npy", np.stack(expected))


def check_epochs(
    epochs: Iterable[Iterable[tuple[Any, Any]]],
    expected: np.ndarray,
    batch_size: int,
    tolerance: float,
    channels_last: bool = False,
) -> None:
    """Raise `DifferentWork` unless each epoch has every photograph once, with the expected pixels, in another order.

    Parameters
    ----------
    epochs : iterable of epochs
        Each yields pairs of images and numbers.
    expected : float32 array of shape (records, 3, 50)
        `describe` of all photographs, in the order of their numbers.
    batch_size : int
        The size of the largest batch.
    tolerance : float
        The largest difference from `expected`.
    channels_last : bool
        As `Loader` has it.
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
    """Raise `DifferentWork` unless `images` are a batch in the CPU's memory, as `Loader` describes it.

    Parameters
    ----------
    images : array
        The batch.
    batch_size : int
        The size of the largest batch.
    channels_last : bool
        As `Loader` has it.
    """
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


def describe(images: np.ndarray) -> np.ndarray:
    """Return the means of 7 x 7 cells and the standard deviation of each channel: float32 of shape `(batch, 3, 50)`.

    `images` are floats of shape `(batch, 3, 224, 224)`.
    """
    cells = images.reshape(len(images), 3, CELLS, SIZE // CELLS, CELLS, SIZE // CELLS)
    means = cells.mean((3, 5), dtype=np.float64).reshape(len(images), 3, CELLS * CELLS)
    deviations = images.std((2, 3), dtype=np.float64)[..., np.newaxis]
    described: np.ndarray = np.concatenate([means, deviations], axis=2).astype(np.float32)
    return described
