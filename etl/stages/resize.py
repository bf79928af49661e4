"""Stage "resize": pixels to one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from etl.record import Record


@dataclass(frozen=True)
class Resize:
    """Resize `features`, uint8 of shape `(height, width, 3)` or `(height, width)`, to `self.height` x `self.width`.

    Bilinear with Pillow's support for shrinking (every source pixel counts); the aspect ratio is not kept.
    """

    height: int
    width: int
    name: ClassVar[str] = "resize"
    fixes_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1:
            raise ValueError(f"an image cannot be resized to {self.height} x {self.width}; both must be at least 1")

    def __call__(self, record: Record) -> Record:
        pixels = record["features"]
        if pixels.shape[:2] == (self.height, self.width):
            return record
        image = Image.fromarray(pixels).resize((self.width, self.height), Image.Resampling.BILINEAR)
        return {**record, "features": np.asarray(image)}
