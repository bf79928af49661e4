"""Stage "normalise": from pixels in 0..255 to zero mean and unit variance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from etl.kernels import CHANNELS, find_normalise_rows
from etl.stages.collate import check_shape
from presave import Record

# Mean and standard deviation of ImageNet's training images, for pixels from 0 to 1 (Krizhevsky's statistics, as
# torchvision publishes them with its pretrained models: https://pytorch.org/vision/stable/models.html).
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# The index of the only row.
_ONLY_ROW = np.zeros(1, np.int64)


@dataclass(frozen=True)
class Normalise:
    """Normalise each channel: `(features / 255 - mean) / std`.

    `features` go from uint8 to float32, both of shape `(channels, height, width)`. The result is computed in float32 as
    `(features - 255 mean) * (1 / (255 std))`, with both constants rounded once, so that every strategy and every memory
    layout gives the same bits. Pixels of another dtype are from 0 to 255, too: leave out `ToTensor` of torchvision,
    which divides them by 255 already.

    Attributes
    ----------
    mean, std : tuple of float
        One number for each channel, for pixels from 0 to 1; arrays, as they are measured, become tuples.

    Raises
    ------
    ValueError
        If the lengths of `mean` and `std` differ, `std` is not above 0, or features have another shape.
    """

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    name: ClassVar[str] = "normalise"
    fingerprint_kind: ClassVar[str] = "etl.stages.normalise.Normalise"
    written_dtype: ClassVar[np.dtype] = np.dtype(np.float32)

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given: Any = getattr(self, name)
            object.__setattr__(self, name, tuple(given.reshape(-1).tolist() if hasattr(given, "reshape") else given))
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(f"mean {self.mean} and std {self.std} need one number for each channel")
        if min(self.std) <= 0:
            raise ValueError(f"std {self.std} must be above 0")

    def __call__(self, record: Record) -> Record:
        out = np.empty(record["features"].shape, np.float32)
        self.write_into(record["features"], out)
        return {**record, "features": out}

    def write_into(self, features: np.ndarray, out: np.ndarray) -> None:
        """Normalise `features` into `out`, float32 of the same shape, without a temporary."""
        if features.ndim != 3 or features.shape[0] != len(self.mean):
            raise ValueError(f"features have shape {features.shape}, not ({len(self.mean)}, height, width)")
        check_shape("features", features.shape, out)
        if features.dtype == np.uint8 and len(features) == CHANNELS and out.flags.c_contiguous:
            # One pass over the pixels in the memory order of an image costs a tenth of two passes over transposed ones.
            pixels = features.transpose(1, 2, 0)
            flip = pixels.strides[1] < 0  # a view that RandomFlip made
            pixels = np.ascontiguousarray(pixels[:, ::-1] if flip else pixels)
            pixels.flags.writeable = False
            find_normalise_rows()(pixels[np.newaxis], _ONLY_ROW, flip, out[np.newaxis], _ONLY_ROW, *self._rows)
            return
        # Two passes over one image, which stays in the cache between them.
        np.subtract(features, self.offset, out=out)
        np.multiply(out, self.scale, out=out)

    @cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        return self.offset.reshape(-1), self.scale.reshape(-1)

    @cached_property
    def offset(self) -> NDArray[np.float32]:
        """The value to subtract from pixels, for each channel: float32 of shape `(channels, 1, 1)`."""
        return (np.array(self.mean) * 255).astype(np.float32)[:, None, None]

    @cached_property
    def scale(self) -> NDArray[np.float32]:
        """The factor to multiply the difference by, for each channel: float32 of shape `(channels, 1, 1)`."""
        return (1 / (np.array(self.std) * 255)).astype(np.float32)[:, None, None]
