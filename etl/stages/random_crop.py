"""Stage "random_crop": a crop of fixed size, at a random position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from etl.stages.random_flip import refuse_mask
from presave import Record


@dataclass(frozen=True)
class RandomCrop:
    """Crop `features` of shape `(rows, columns, ...)` to `(height, width, ...)` at a random position.

    Put this stage before "channels_first": of `(channels, height, width)` it would crop channels and rows. The label
    stays as it is. Crop boxes together with their image in a stage of your own.

    Attributes
    ----------
    height, width : int
        Size of the crop in pixels.
    padding : int
        The image is zero-padded by this many pixels on each side first (4 is common for CIFAR-10: He et al. 2016,
        section 4.2).

    Raises
    ------
    ValueError
        If an image with its padding is smaller than the crop, or a label is an array as large as the image, such as a
        mask.
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
        refuse_mask(record)
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
        top, left = row - self.padding, column - self.padding  # of the crop, in the image
        inside = pixels[max(top, 0) : max(top + self.height, 0), max(left, 0) : max(left + self.width, 0)]
        row, column = max(-top, 0), max(-left, 0)  # of the image, in the crop
        cropped = np.zeros((self.height, self.width, *pixels.shape[2:]), pixels.dtype)
        cropped[row : row + inside.shape[0], column : column + inside.shape[1]] = inside
        return {**record, "features": cropped}
