"""Stage "random_resized_crop": a crop of random position, size and aspect ratio, resized."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from etl.stages.resize import Resize
from presave import Record

MAX_TRIES = 10


@dataclass(frozen=True)
class DecodedCrop:
    """A crop that the decoder took: `pixels` is a uint8 array of shape `(rows, columns, 3)`."""

    pixels: NDArray[np.uint8]


@dataclass(frozen=True)
class RandomResizedCrop:
    """Crop `features`, uint8 of shape `(rows, columns, 3)` or `(rows, columns)`, at random and resize the crop.

    This is Inception's augmentation (Szegedy et al. 2015, arXiv:1409.4842) with torchvision's defaults. If ten random
    crops do not fit into the image, the largest crop in its centre is taken. Put this stage before "channels_first".
    The label stays as it is: crop a mask or boxes together with their image in a stage of your own.

    Attributes
    ----------
    height, width : int
        Size after resizing, in pixels.
    resizer : str
        "pillow" or "opencv", as for `Resize`.
    scale : (float, float)
        Smallest and largest area of the crop, as a share of the image's.
    ratio : (float, float)
        Smallest and largest aspect ratio of the crop, width over height.

    Raises
    ------
    ValueError
        If a setting is invalid.
    """

    height: int
    width: int
    resizer: str = "pillow"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    name: ClassVar[str] = "random_resized_crop"
    fingerprint_kind: ClassVar[str] = "etl.stages.random_resized_crop.RandomResizedCrop"
    fixes_size: ClassVar[bool] = True
    is_random: ClassVar[bool] = True
    written_dtype: ClassVar[np.dtype] = np.dtype(np.uint8)

    def __post_init__(self) -> None:
        _ = self._resize  # checks the size and the resizer
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale {self.scale} must be two shares of the area, above 0, at most 1, the lower first")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio {self.ratio} must be two numbers above 0, the lower first")

    def __call__(self, record: Record, random: np.random.Generator) -> Record:
        return self._resize({**record, "features": self._cut(record["features"], random)})

    def write_into(self, features: Any, out: np.ndarray, random: np.random.Generator) -> None:
        """Crop and resize into an array.

        Parameters
        ----------
        features : uint8 array of shape (rows, columns, 3) or (rows, columns), or Pillow image
            The image.
        out : uint8 array of shape (height, width, 3) or (height, width)
            Receives the result.
        random : numpy.random.Generator
            Draws the crop.
        """
        self._resize.write_into(self._cut(features, random), out)

    @cached_property
    def _resize(self) -> Resize:
        return Resize(self.height, self.width, self.resizer)

    def draw(self, height: int, width: int, random: np.random.Generator) -> tuple[int, int, int, int]:
        """Draw a crop.

        Parameters
        ----------
        height, width : int
            Size of the image in pixels.
        random : numpy.random.Generator
            Draws the crop.

        Returns
        -------
        First row, first column, height and width of the crop.
        """
        smallest, largest = self.scale
        narrowest, widest = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(MAX_TRIES):
            # The numbers that `uniform` would draw, in a third of the time.
            area = height * width * (smallest + (largest - smallest) * random.random())
            ratio = math.exp(narrowest + (widest - narrowest) * random.random())
            rows, columns = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < rows <= height and 0 < columns <= width:
                # One by one: a tuple of bounds gives the same numbers in four times as long.
                first_row = int(random.integers(height - rows + 1))
                return first_row, int(random.integers(width - columns + 1)), rows, columns
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        rows, columns = min(height, max(1, round(width / ratio))), min(width, max(1, round(height * ratio)))
        return (height - rows) // 2, (width - columns) // 2, rows, columns

    def _cut(self, features: Any, random: np.random.Generator) -> Any:
        if isinstance(features, DecodedCrop):
            return features.pixels
        is_image = isinstance(features, Image.Image)
        height, width = features.size[::-1] if is_image else features.shape[:2]
        first_row, first_column, rows, columns = self.draw(height, width, random)
        if is_image:
            return features.crop((first_column, first_row, first_column + columns, first_row + rows))
        return features[first_row : first_row + rows, first_column : first_column + columns]
