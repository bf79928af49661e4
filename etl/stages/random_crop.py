"""Stage "random_crop": a part of the image of fixed size, at a random place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from etl.sources.record import Record


@dataclass(frozen=True)
class RandomCrop:
    """Cut `self.height` x `self.width` out of `features` of shape `(height, width, ...)`, at a random place.

    `padding` pixels of 0 are thought around the image first (4 is usual for CIFAR-10: He et al. 2016, section 4.2).
    Comes before "channels_first". Raises `ValueError` for an image that is too small.
    """

    height: int
    width: int
    padding: int = 0
    name: ClassVar[str] = "random_crop"
    fingerprint_kind: ClassVar[str] = "etl.stages.random_crop.RandomCrop"
    fixes_size: ClassVar[bool] = True
    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1 or self.padding < 0:
            raise ValueError(
                f"a crop of {self.height} x {self.width} with padding {self.padding}: "
                "both sides must be at least 1, padding at least 0"
            )

    def __call__(self, record: Record, random: np.random.Generator) -> Record:
        pixels = record["features"]
        height, width = (side + 2 * self.padding for side in pixels.shape[:2])
        if height < self.height or width < self.width:
            raise ValueError(
                f"an image of {pixels.shape[0]} x {pixels.shape[1]} with padding {self.padding} is smaller than the "
                f"crop, {self.height} x {self.width}"
            )
        row, column = random.integers((height - self.height + 1, width - self.width + 1)).tolist()
        if self.padding == 0:
            return {**record, "features": pixels[row : row + self.height, column : column + self.width]}
        cropped = np.zeros((self.height, self.width, *pixels.shape[2:]), pixels.dtype)
        inside, places = zip(
            _overlap(row - self.padding, self.height, pixels.shape[0]),
            _overlap(column - self.padding, self.width, pixels.shape[1]),
            strict=True,
        )
        cropped[places] = pixels[inside]
        return {**record, "features": cropped}


def _overlap(first: int, size: int, available: int) -> tuple[slice, slice]:
    """Which of `available` pixels lie in the `size` from `first` on, and where in these they stand."""
    low, high = max(first, 0), max(min(first + size, available), max(first, 0))
    return slice(low, high), slice(low - first, high - first)
